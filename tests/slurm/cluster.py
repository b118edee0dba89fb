"""A real Slurm of one node on the loopback interface, without systemd, cgroups or accounting.

`python tests/slurm/cluster.py` starts it and prints how to reach it; Ctrl-C stops it. Debian and Ubuntu have what it
needs as `slurm-wlm` and `munge`.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_USER = f"--user={getpass.getuser()}"

_CONF = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job waits until its old credential has expired, by default two minutes.
AuthInfo=socket={directory}/munge/socket,cred_expire=5
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
# The memory limit is kept by looking once a second, since a container's cgroups may be read-only.
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
# Two steps of a run fit into it; by default it is 30 seconds.
KillWait=8
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={num_cpus} RealMemory=64000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP DefMemPerCPU=6000
"""


def why_not_here() -> str | None:
    """The reason why no Slurm can be started here, None if it can."""
    missing = [program for program in _PROGRAMS if shutil.which(program, path=_PATH) is None]
    return f"needs Slurm (Debian's slurm-wlm and munge): no {', '.join(missing)}" if missing else None


class OneNodeSlurm:
    """A cluster whose daemons run; `environment` leads Slurm's commands to it."""

    def __init__(self, directory: Path, num_cpus: int) -> None:
        self._directory = directory
        self._host = socket.gethostname().partition(".")[0]
        self.environment = {"SLURM_CONF": str(directory / "slurm.conf"), "PATH": _PATH}
        facts = {"controller_port": _free_port(), "node_port": _free_port(), "user": getpass.getuser()}
        conf = _CONF.format(directory=directory, host=self._host, num_cpus=num_cpus, **facts)
        (directory / "slurm.conf").write_text(conf)

    def start(self) -> None:
        """Start the daemons, and wait until the node takes jobs."""
        directory = self._directory
        for name in ("munge", "state", "spool"):
            (directory / name).mkdir(mode=0o755)
        key = directory / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        munge = {name: f"{directory}/munge/{name}" for name in ("socket", "log-file", "seed-file")}
        munge |= {"key-file": str(key), "pid-file": f"{directory}/munge/pid"}
        self.command("munged", "--num-threads=2", *(f"--{name}={path}" for name, path in munge.items()))
        self.command("slurmctld", "-c")
        self.command("slurmd", "-N", self._host)
        until, state = time.monotonic() + 60, ""
        while state != "idle":
            assert time.monotonic() < until, f"the node is {state!r}: {(directory / 'slurmd.log').read_text()}"
            time.sleep(0.1)
            with suppress(subprocess.CalledProcessError):
                state = self.command("sinfo", "--noheader", "--format=%T").strip()

    def stop(self) -> None:
        """End all jobs and daemons."""
        until, pids = time.monotonic() + 10, []
        with suppress(subprocess.SubprocessError):
            self.command("scancel", "--signal=KILL", "--full", _USER)
            self.command("scancel", _USER)
            while self.command("squeue", "--noheader") and time.monotonic() < until:
                time.sleep(0.1)
        for name in ("slurmd.pid", "slurmctld.pid", "munge/pid"):
            with suppress(FileNotFoundError, ProcessLookupError, ValueError):
                pids.append(int((self._directory / name).read_text()))
                os.kill(pids[-1], signal.SIGTERM)
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
            time.sleep(0.05)

    def command(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        """Run a Slurm command and return its output."""
        environment = {**os.environ, **(environment or {}), **self.environment}
        program = shutil.which(words[0], path=_PATH)
        assert program is not None
        # Daemons keep their starter's streams: files, as the end of a pipe would never come.
        with tempfile.TemporaryFile("w+") as out:
            subprocess.run([program, *words[1:]], env=environment, check=True, stdout=out, timeout=60)
            out.seek(0)
            return out.read()


@contextmanager
def one_node_slurm(num_cpus: int = 4) -> Iterator[OneNodeSlurm]:
    """A cluster of one node that seems to have `num_cpus` processors."""
    directory = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short: sockets lie in it
    directory.chmod(0o755)  # required by munged
    cluster = OneNodeSlurm(directory, num_cpus)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


if __name__ == "__main__":
    if (reason := why_not_here()) is not None:
        sys.exit(reason)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell has what it starts in the background ignore Ctrl-C
        signal.signal(number, signal.default_int_handler)
    with one_node_slurm() as running, suppress(KeyboardInterrupt):
        print("export " + " ".join(f"{name}={value}" for name, value in running.environment.items()), flush=True)
        signal.pause()
