"""One file per figure: PAPER, CAPTION, GROUP, NEEDS, `numbers(inputs)` and `draw(numbers)`; nothing else names it."""
