"""What generation is compiled from: weights laid out for it, the network over them, the choice of a token.

README.md beside this file says what was tried, and what it gave.
"""
