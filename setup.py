from setuptools import find_packages, setup

setup(
    name="gpt2tf",
    version="0.1.0",
    description="GPT-2 in Keras 3 / TensorFlow 2: the original checkpoints in, the original's text out",
    long_description=open("README.md", encoding="utf-8").read(),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",
    packages=find_packages(include=["gpt2tf", "gpt2tf.*", "encoder"]),
    package_data={
        "gpt2tf": ["models/*/*", "*/README.md", "paper/*.css", "paper/*.js"],
        "encoder": ["encoder.json", "vocab.bpe"],
    },
    install_requires=["tensorflow>=2.16", "numpy", "regex", "requests", "tqdm"],
    extras_require={
        "test": [
            *["pytest", "pytest-xdist", "hypothesis", "safetensors", "ruff==0.17.6", "setuptools", "wheel"],
            *["rouge-score", "sacrebleu"],
        ],
        "bench": ["torch", "transformers", "ctranslate2", "llama-cpp-python", "gguf"],
        "hf": ["safetensors"],
        "paper": ["rouge-score", "sacrebleu"],
        "gpu": ["tensorflow[and-cuda]>=2.16"],
    },
    entry_points={"console_scripts": ["gpt2tf=gpt2tf.cli:main"]},
)
