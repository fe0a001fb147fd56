"""One update of the weights: loss, gradients, their mean over batches and devices, and the optimizer's step.

On one device all of it is one function compiled by XLA; under `tf.distribute` only the gradients are compiled, because
the reduction over the devices comes between them and the optimizer. The loss and the dropout of a row do not depend on
how the rows of an update are distributed over batches and devices.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from gpt2tf.model import GPT2, head
from gpt2tf.train.adafactor import Adafactor
from gpt2tf.train.dropout import row_keys
from gpt2tf.train.ids import as_ids
from gpt2tf.train.loss import mean_nats
from gpt2tf.train.settings import Settings, freeze_words, parse_freeze


def make_optimizer(settings: Settings, variables: list[keras.Variable]) -> keras.optimizers.Optimizer:
    """The optimizer of the settings, built for these variables; its learning rate warms up and falls along a cosine."""
    schedule = keras.optimizers.schedules.CosineDecay(
        settings.learning_rate / (settings.warmup + 1),
        decay_steps=max(1, settings.steps - settings.warmup),
        alpha=settings.final_rate,
        warmup_target=settings.learning_rate,
        warmup_steps=settings.warmup,
    )
    if settings.optimizer == "adafactor":
        optimizer = Adafactor(schedule, weight_decay=settings.weight_decay)
    else:
        optimizer = keras.optimizers.AdamW(
            schedule,
            beta_1=settings.beta_1,
            beta_2=settings.beta_2,
            epsilon=settings.epsilon,
            weight_decay=settings.weight_decay,
        )
    optimizer.exclude_from_weight_decay(var_list=[v for v in variables if len(v.shape) < 2])
    optimizer.build(variables)
    return optimizer


class Trainer:
    """A model with its optimizer, and the compiled functions of an update and of the validation loss.

    To be made under `strategy.scope()`, as the model is. Raises ValueError for settings that leave nothing to train,
    that do not fit the model, or whose batch_size is no multiple of the number of devices.
    """

    def __init__(self, model: GPT2, settings: Settings, strategy: tf.distribute.Strategy):
        self.model = model
        self.settings = settings
        self.strategy = strategy
        self.replicas = strategy.num_replicas_in_sync
        if settings.batch_size % self.replicas:
            raise ValueError(f"batch_size is {settings.batch_size}, which {self.replicas} devices cannot share evenly")
        if (settings.window or 0) > model.hparams.n_ctx:
            raise ValueError(f"window is {settings.window}; the model's n_ctx is {model.hparams.n_ctx}")
        frozen = parse_freeze(settings.freeze)
        self.variables = [v for v in model.trainable_variables if not frozen(v.path)]
        for word in freeze_words(settings.freeze):
            if not any(parse_freeze(word)(v.path) for v in model.variables):
                raise ValueError(f"freeze has {word!r}; the model's n_layer is {model.hparams.n_layer}")
        if not self.variables:
            raise ValueError(f"freeze is {settings.freeze!r}, which leaves nothing to train")
        self.optimizer = make_optimizer(settings, self.variables)
        self._mean_gradients = tf.function(self._gradients, jit_compile=True, autograph=False)
        self._update = tf.function(self._on_all_devices, jit_compile=self.replicas == 1, autograph=False)
        self._losses = tf.function(self._loss, jit_compile=True, autograph=False)

    def update(self, step: int, tokens) -> tuple[float, float]:
        """Train on the windows of a step: (mean loss in nats, norm of the gradients before they are clipped).

        tokens: [accumulate * batch_size, window + 1] ids, the same on all workers; the rows of an update.
        """
        tokens, rows = np.asarray(tokens), np.arange(len(tokens), dtype=np.int32)
        if self.replicas > 1:
            tokens, rows = self._distributed(tokens), self._distributed(rows)
        loss, norm = self._update(tokens, rows, tf.constant(step))
        first = self.strategy.experimental_local_results
        return float(first(loss)[0]), float(first(norm)[0])

    def loss(self, batches) -> float:
        """The mean loss in nats over batches of windows, [batch, window + 1] ids, without dropout."""
        total = count = 0
        for tokens in batches:
            total += float(self._losses(tf.constant(tokens))) * tokens[:, 1:].size
            count += tokens[:, 1:].size
        return total / count

    def state(self) -> list[np.ndarray]:
        """The optimizer's variables."""
        return [np.asarray(v) for v in self.optimizer.variables]

    def restore(self, state: list[np.ndarray]) -> None:
        """Go on from a `state`. Raises ValueError for one of another optimizer or of other variables."""
        found, expected = [v.shape for v in state], [tuple(v.shape) for v in self.optimizer.variables]
        if found != expected:
            raise ValueError("the optimizer's state is of other settings (optimizer, freeze) than these")
        for variable, value in zip(self.optimizer.variables, state, strict=True):
            variable.assign(value)

    def _distributed(self, rows):
        """The rows of each device."""
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(rows[context.replica_id_in_sync_group :: self.replicas])
        )

    def _on_all_devices(self, tokens, rows, step):
        return self.strategy.run(self._on_one_device, (tokens, rows, step))

    def _on_one_device(self, tokens, rows, step):
        loss, gradients = self._mean_gradients(tokens, rows, step)
        if self.replicas > 1:
            context = tf.distribute.get_replica_context()
            loss, *gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, [loss, *gradients])
        norm = tf.linalg.global_norm(gradients)
        if self.settings.clip:
            gradients, _ = tf.clip_by_global_norm(gradients, self.settings.clip, norm)
        # Keras adds the gradients of the devices up; here they are equal already.
        self.optimizer.apply([gradient / self.replicas for gradient in gradients], self.variables)
        return loss, norm

    def _gradients(self, tokens, rows, step):
        """The mean loss and its gradients, batch by batch. tokens: [rows, window + 1]; rows: [rows], their numbers."""
        parts = self.settings.accumulate
        tokens = tf.reshape(tokens, [parts, -1, tokens.shape[-1]])  # [part, batch, window + 1]
        rows = tf.reshape(rows, [parts, -1])  # [part, batch]
        if parts == 1:
            return self._batch_gradients(tokens[0], rows[0], step)

        def add(part, loss, *sums):
            more, gradients = self._batch_gradients(tokens[part], rows[part], step)
            return (part + 1, loss + more / parts, *(s + g / parts for s, g in zip(sums, gradients, strict=True)))

        zeros = [tf.zeros(v.shape) for v in self.variables]
        _, loss, *gradients = tf.while_loop(lambda part, *_: part < parts, add, (0, 0.0, *zeros))
        return loss, gradients

    def _batch_gradients(self, tokens, rows, step):
        with tf.GradientTape() as tape:
            loss = self._loss(tokens, training=True, dropout_keys=row_keys(self.settings.seed, step, rows))
        gradients = tape.gradient(loss, [v.value for v in self.variables])
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _loss(self, tokens, **training):
        h, _, ok = self.model.hidden(tokens[:, :-1], **training)  # [batch, window, features]
        targets, fine = as_ids(tokens[:, 1:], self.model.hparams.n_vocab, "target")
        loss = mean_nats(head, h, tf.convert_to_tensor(self.model.wte), targets)
        return tf.where(tf.logical_and(ok, fine), loss, float("nan"))
