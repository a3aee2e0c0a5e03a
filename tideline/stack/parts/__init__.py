"""The parts of the stack: how each is prepared, started, asked whether it answers, finished."""
