"""Scores of texts, and what is in the paper "Language Models are Unsupervised Multitask Learners": tables and samples."""
