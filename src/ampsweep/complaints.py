"""The complaints about a training in low precision that the doctor examines."""

from typing import Final, Literal, get_args

Complaint = Literal["types", "loss", "numerics", "memory", "speed"]
"""`types`: operators get dtypes that they do not take together; `loss`: it is not finite, or worse than in float32;
`numerics`: an operator's error is larger than its dtype explains; `memory`: it did not shrink; `speed`: the gain is
small. What breaks a training comes first."""

COMPLAINTS: Final[tuple[Complaint, ...]] = get_args(Complaint)
