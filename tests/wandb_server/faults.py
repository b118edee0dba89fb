"""How a server misbehaves when it is told to."""

import re
from dataclasses import dataclass


@dataclass
class Fault:
    """What happens to requests instead of an answer, while it lasts.

    Args:
        on: a regular expression found in the path or the GraphQL operation's name, such as "file_stream".
        status: HTTP status of the answer; 0 drops the connection before the request has had an effect.
        delay_s: how long the answer keeps the client waiting; with the status 200 the request then works.
        is_heard: the request has its effect, although the client is told otherwise.
        times: how many requests it lasts for.
    """

    on: str = ""
    status: int = 500
    delay_s: float = 0.0
    is_heard: bool = False
    times: float = float("inf")

    def strikes(self, path: str, operation: str) -> bool:
        """Whether it is this request's turn; counts it."""
        if self.times <= 0 or not re.search(self.on, f"{path} {operation}"):
            return False
        self.times -= 1
        return True
