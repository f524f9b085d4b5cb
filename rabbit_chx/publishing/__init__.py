"""Publishing in bulk, with the truth about every message.

frames.py      messages -> bytes, many at once            (pure)
window.py      what is in flight, and what became of it   (pure)
returns.py     which message came back                    (pure)
attempts.py    which broker is tried next, and until when (pure)
account.py     the books, where the two threads meet
link.py        one connection on pika's machinery, which reads confirms fast
engine.py      the thread, and what happens after a fault
publisher.py   the face
"""
