"""Scores of texts, and the tables and samples of "Language Models are Unsupervised Multitask Learners"."""
