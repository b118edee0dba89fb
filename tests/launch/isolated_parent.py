"""A process that runs one target in isolation and prints what it hears and how it ended, a line of JSON each."""

import dataclasses
import json
import sys

from isolated_targets import target

from ampsweep.launch.isolated_process import run_isolated
from ampsweep.launch.processes import start_fork_server


def say(message):
    print(json.dumps(message), flush=True)


def main():
    name, path, grace_s, preload = sys.argv[1:]
    start_fork_server(preload.split(","))
    say("ready")
    end = run_isolated(target(name), (path,), on_message=say, grace_s=float(grace_s))
    say({name: fact for name, fact in dataclasses.asdict(end).items() if name != "lost_s"})  # a moment of its clock
    say(run_isolated(target("echo"), ("next",)).result)


if __name__ == "__main__":
    main()
