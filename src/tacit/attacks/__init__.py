"""What an enemy sees: attacks on what Tacit releases, and on what it answers.

Every figure here reads the truth that the attack tries to guess: it is private, for the owner.
"""
