"""One file per table: PAPER, CAPTION, GROUP, NEEDS, `table(inputs)` and `printed(table)`; nothing else names it."""
