"""The colour of an arm beside its name, so that colour is never alone in telling arms apart."""

from ampsweep.report.markup import Markup, join, name, tag
from ampsweep.report.palette import ArmStyle


def swatch(style: ArmStyle) -> Markup:
    """A patch of the arm's colour."""
    return tag("span", class_="swatch", style=f"--arm:{style.colour}", aria_hidden="true")


def arm_name(arm: str, style: ArmStyle) -> Markup:
    """The arm's name after its colour."""
    return tag("span", join(swatch(style), name(arm)), class_="arm-name")
