"""Lengths of time as people read them."""


def duration(seconds: float, *, whole: bool = False) -> str:
    """A length of time in two units at most; tenths of short ones unless they are to be `whole` seconds.

    >>> duration(4.24), duration(25.4), duration(75.0), duration(7500.0), duration(200_000.0)
    ('4.2 s', '25 s', '1:15 min', '2:05 h', '2 d 7 h')
    """
    if seconds < 9.95 and not whole:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours}:{minutes:02} h" if hours < 48 else f"{hours // 24} d {hours % 24} h"
