"""What the jobs share: entry, session, rows, and the sources of frames."""

from tideline import kafka as kafka  # before kio
