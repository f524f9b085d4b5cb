"""Publishing in bulk, with the truth about every message.

frames.py      messages -> bytes, many at once            (pure)
window.py      what is in flight, and what became of it   (pure)
link.py        one connection on pika's machinery, which reads confirms fast
publisher.py   the thread, the retries, the face
"""
