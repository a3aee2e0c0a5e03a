"""What the jobs share: entry, session, rows, and the sources of frames."""
