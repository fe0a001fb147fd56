"""Scores of texts, and the tables and samples of the paper "Language Models are Unsupervised Multitask Learners"."""
