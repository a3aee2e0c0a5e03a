"""Client libraries at work, each as a program of its own that is told what to do line by line.

A program is given the file of :func:`tests.clients.ways.write_ways`. Every one knows the same
commands, whatever it is written in, and answers each with one line. A NAME begins with the way by
which that client gets to the gateways, and a colon:

``open NAME GROUP PROTOCOL ISOLATION TOPIC``
    A group consumer that begins at the earliest offset, or where its group committed.
``close NAME``
    It commits what it has read, and leaves.
``produce NAME TOPIC``
    An idempotent producer, steadily, to partition 0.
``rest NAME``
    It sends no more; what it sent is settled.
``transact NAME TOPIC commit|abort VALUE``
    One transaction of one record. The answer: ``committed OFFSET``, ``aborted OFFSET`` or
    ``refused ERROR``, after which the same producer may be told to transact again.
``share NAME GROUP TOPIC``
    A member of a share group, of Java only; ended by ``close``.

What is acknowledged and read meanwhile, and which errors clients tell, is told as it happens; so is
the end of a client by an error (``ended``), and no wait of the test goes on after it.
"""
