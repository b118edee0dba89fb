"""A real Slurm of one node on the loopback interface, without systemd, cgroups or accounting; and a small training.

Debian and Ubuntu have what it needs as `slurm-wlm` and `munge`.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
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
# The memory limit is kept by looking once a second, since a container's cgroups may be read-only.
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
# Two steps of a run fit into it; by default it is 30 seconds.
KillWait=8
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=64000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP DefMemPerCPU=6000
"""


TRAINING = (
    *("model=custom", "model._target_=ordered_models.Ordered", "+model.orders=orders", "data=digits"),
    *("trainer.steps=16", "trainer.log_every=1", "trainer.eval_every=null", "optimizer.lr=0.01"),
    *("tracking=disabled", "predict.with_runs=false"),
)
"""Of a second, by a model that obeys the orders of a test."""
PATIENCE_S = 240.0


def wait_until(condition, why=lambda: ""):
    """Wait until `condition` returns True; `why` is asked for an explanation if it never does."""
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, f"waited in vain: {why()}"
        time.sleep(0.1)


class OneNodeSlurm:
    """A cluster whose daemons run; `environment` leads Slurm's commands to it."""

    def __init__(self, directory):
        self._directory = directory
        self._host = socket.gethostname().partition(".")[0]
        self.environment = {"SLURM_CONF": str(directory / "slurm.conf"), "PATH": PATH}
        facts = {"controller_port": _free_port(), "node_port": _free_port(), "user": getpass.getuser()}
        (directory / "slurm.conf").write_text(_CONF.format(directory=directory, host=self._host, **facts))

    def start(self):
        """Start the daemons, and wait until the node takes jobs."""
        directory = self._directory
        for name in ("munge", "state", "spool"):
            (directory / name).mkdir(mode=0o755)
        munge = directory / "munge"
        (munge / "key-file").touch(mode=0o600)
        (munge / "key-file").write_bytes(os.urandom(128))
        files = [f"--{name}={munge / name}" for name in ("socket", "log-file", "seed-file", "key-file", "pid-file")]
        self.command("munged", "--num-threads=2", *files)
        self.command("slurmctld", "-c")
        self.command("slurmd", "-N", self._host)

        def is_idle():
            with suppress(subprocess.CalledProcessError):
                return self.command("sinfo", "--noheader", "--format=%T").strip() == "idle"

        wait_until(is_idle, (directory / "slurmd.log").read_text)

    def stop(self):
        """End all jobs and daemons."""
        until, pids = time.monotonic() + 10, []
        with suppress(subprocess.SubprocessError):
            self.command("scancel", "--signal=KILL", "--full", _USER)
            self.command("scancel", _USER)
            while self.command("squeue", "--noheader") and time.monotonic() < until:
                time.sleep(0.1)
        for name in ("slurmd.pid", "slurmctld.pid", "munge/pid-file"):
            with suppress(FileNotFoundError, ProcessLookupError, ValueError):
                pids.append(int((self._directory / name).read_text()))
                os.kill(pids[-1], signal.SIGTERM)
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
            time.sleep(0.05)

    def command(self, *words, environment=None):
        """Run a Slurm command and return its output."""
        environment = {**os.environ, **(environment or {}), **self.environment}
        words = (shutil.which(words[0], path=PATH), *words[1:])
        # Daemons keep their starter's streams: files, as the end of a pipe would never come.
        with tempfile.TemporaryFile("w+") as out:
            subprocess.run(words, env=environment, check=True, stdout=out, timeout=60)
            out.seek(0)
            return out.read()


def _free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
