"""A GPT2 in Keras's own fit, evaluate, predict, save and export; and the loss to give them."""

from __future__ import annotations

import dataclasses

import keras
import tensorflow as tf

from gpt2tf import encoder
from gpt2tf.hparams import HParams
from gpt2tf.train.dropout import Rates, row_keys
from gpt2tf.train.ids import IGNORED, as_ids, refuse_unless


@keras.saving.register_keras_serializable("gpt2tf")  # so that a model compiled with it can be saved and loaded
def cross_entropy(targets, logits):
    """How unlikely each target was, in nats; as a Keras loss it is averaged over all that count.

    targets: [batch, seq] ids of any dtype; -100 does not count. logits: [batch, seq, vocab] -> [batch, seq] float32

    What does not count is 0, and the rest is divided by the share that counts: so the mean over all of them is the mean
    over those that count. A target that is no id is a ValueError; in what XLA compiles all become NaN, without a
    gradient.
    """
    ids, ok = as_ids(targets, logits.shape[-1], "target", IGNORED)
    counts = tf.cast(targets, tf.int64) != IGNORED  # [batch, seq]
    nats = tf.nn.sparse_softmax_cross_entropy_with_logits(ids, tf.cast(logits, tf.float32))  # [batch, seq]
    share = tf.reduce_mean(tf.cast(counts, tf.float32))
    nats = tf.where(counts, nats / tf.maximum(share, 1e-30), 0.0)
    return tf.where(ok, nats, float("nan"))


class KerasModel(keras.Model):
    """What a GPT2 is to Keras: ids in, {"logits": ..., ...} out, of which losses and metrics see the logits.

    hparams, dropout, recompute, vocabulary: as of GPT2. XLA drops assertions, so a step of fit, evaluate and predict is
    compiled without the checks of its batch, which stand in front of it.
    """

    def __init__(self, hparams: HParams, dropout: Rates, recompute: bool, dtype, vocabulary: encoder.Vocabulary | None):
        backend = keras.backend.backend()
        if backend != "tensorflow":
            raise RuntimeError(f"Keras runs on {backend}; set KERAS_BACKEND=tensorflow before it is imported")
        super().__init__(name="model", dtype=dtype, autocast=False)  # no casts of ids that came as floats
        self.hparams = hparams
        self.dropout = dropout
        self.recompute = recompute
        self.vocabulary = vocabulary
        # A bound method is not tracked by Keras, so the generator's state is no variable of the model.
        self._next_seed = keras.random.SeedGenerator().next

    @property
    def vocabulary(self) -> encoder.Vocabulary | None:
        return self._vocabulary

    @vocabulary.setter
    def vocabulary(self, value: encoder.Vocabulary | None):
        if not isinstance(value, encoder.Vocabulary | None):
            raise TypeError(f"vocabulary is {value!r}; it must be an encoder.Vocabulary, or None where it is not known")
        if value is not None and (value.size or 0) > self.hparams.n_vocab:
            raise ValueError(
                f"the vocabulary has {value.size} tokens, its model has {self.hparams.n_vocab}; put the files of one "
                "model together"
            )
        self._vocabulary = value

    def check_finite(self) -> None:
        """Raises ValueError that names a variable with a NaN or an infinity."""
        for variable in self.variables:
            if not tf.reduce_all(tf.math.is_finite(variable.value)):
                raise ValueError(
                    f"{variable.path} has values that are not finite, so the model is not saved; go on from the last "
                    "save, with a lower learning rate"
                )

    def get_config(self):
        """What `model.save` writes and `keras.models.load_model` reads; the weights are written beside it."""
        sizes, rates = dataclasses.asdict(self.hparams), dataclasses.asdict(self.dropout)
        dtype = keras.dtype_policies.serialize(self.dtype_policy)
        config = {"hparams": sizes, "dropout": rates, "recompute": self.recompute, "dtype": dtype}
        vocabulary = self.vocabulary and dataclasses.asdict(self.vocabulary)
        frozen = [v.path for v in self.variables if not v.trainable]
        return config | {"vocabulary": vocabulary, "frozen": frozen}

    @classmethod
    def from_config(cls, config):
        config = {"vocabulary": None, "frozen": []} | config
        config["hparams"], config["dropout"] = HParams(**config["hparams"]), Rates(**config["dropout"])
        config["vocabulary"] = config["vocabulary"] and encoder.Vocabulary(**config["vocabulary"])
        frozen = config.pop("frozen")
        model = cls(**config)
        for variable in model.variables:
            variable.trainable = variable.path not in frozen
        return model

    @property
    def input_dtype(self):
        """Of the signatures of what is exported."""
        return "int32"

    def export(self, filepath, *args, **kwargs):
        """As `keras.Model.export`, also for a model that was never called."""
        self(tf.zeros([1, 1], tf.int32))
        return super().export(filepath, *args, **kwargs)

    def ids(self, tokens, past_length=0):
        """[batch, seq] of any dtype -> (int32, ok) as `as_ids`; not ok, too, where they do not fit the window.

        Raises ValueError, as `as_ids` does, and where it is known beforehand that they do not fit.
        """
        ids, ok = as_ids(tokens, self.hparams.n_vocab)
        n_ctx, seq = self.hparams.n_ctx, ids.shape[1]
        if not (seq is None or tf.is_tensor(past_length)):
            if past_length + seq > n_ctx:
                raise ValueError(f"{past_length} past and {seq} new tokens are {past_length + seq}; n_ctx is {n_ctx}")
            return ids, ok
        length = past_length + tf.shape(ids)[1]
        fits = length <= n_ctx
        limit = f"tokens is longer than n_ctx, {n_ctx}"
        with tf.control_dependencies(refuse_unless(fits, "a sequence of", length, limit)):
            return tf.identity(ids), tf.logical_and(ok, fits)

    def fresh_keys(self, batch):
        """Keys of a step that nobody numbers; replicas of tf.distribute have different rows of it."""
        seed, step = tf.unstack(tf.convert_to_tensor(self._next_seed()))
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return row_keys(seed, step, replica * batch + tf.range(batch))

    def train_step(self, data):
        return self._checked(super().train_step, data)

    def test_step(self, data):
        return self._checked(super().test_step, data)

    def predict_step(self, data):
        return self._checked(super().predict_step, data)

    def _checked(self, step, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        x, _ = self.ids(x)
        ignored = IGNORED if self.loss is cross_entropy else getattr(self.loss, "ignore_class", None)
        of_ids = self.loss in (cross_entropy, "sparse_categorical_crossentropy") or hasattr(self.loss, "ignore_class")
        if of_ids and y is not None:
            targets, _ = as_ids(y, self.hparams.n_vocab, "target", ignored)
            with tf.control_dependencies([targets]):
                y = tf.identity(y)
        if self.jit_compile and not self.run_eagerly:
            step = tf.function(step, jit_compile=True)
        return step((x, y, sample_weight))

    def make_train_function(self, force=False):
        self._make(super().make_train_function, force)

    def make_test_function(self, force=False):
        self._make(super().make_test_function, force)

    def make_predict_function(self, force=False):
        self._make(super().make_predict_function, force)

    def _make(self, make, force):
        jit_compile, self.jit_compile = self.jit_compile, False
        try:
            make(force)
        finally:
            self.jit_compile = jit_compile

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred["logits"], sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, y, y_pred["logits"], sample_weight)
