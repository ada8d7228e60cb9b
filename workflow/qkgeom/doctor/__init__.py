"""Checks of what a run needs before it starts; each file `check_*.py` is one kind of check, `runner.py` asks them all.

Nothing here needs more than the standard library until a check is asked, so that a broken environment can be told.
"""
