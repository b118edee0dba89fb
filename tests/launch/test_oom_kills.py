"""What the kernel counts for this cgroup: read from its files, wherever they are."""

import pytest

from ampsweep.launch.processes import num_oom_kills

EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"
OF_STEP = "system.slice/slurmstepd.scope/job_7/step_0/user"


@pytest.mark.parametrize(
    ("cgroup", "file", "content", "count"),
    [
        pytest.param("0::/user/me\n", "user/me/memory.events", EVENTS, 2, id="v2"),
        pytest.param("0::/\n", "memory.events", EVENTS, 2, id="v2 in a container"),
        pytest.param(f"0::/{OF_STEP}/task_0\n", f"{OF_STEP}/memory.events", EVENTS, 2, id="v2 in a step of Slurm"),
        pytest.param("4:cpu:/\n3:memory:/a/b\n0::/\n", "memory/a/b/memory.oom_control", CONTROL, 5, id="v1"),
        pytest.param("3:memory:/unseen\n", "memory/memory.oom_control", CONTROL, 5, id="v1 in a container"),
        pytest.param("0::/\n", "memory.events", "max 12\n", None, id="an old kernel"),
    ],
)
def test_kills_are_counted_where_the_system_counts_them(cgroup, file, content, count, tmp_path):
    assert num_oom_kills(tmp_path) is None
    for path, text in ((tmp_path / "proc/self/cgroup", cgroup), (tmp_path / "sys/fs/cgroup" / file, content)):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert num_oom_kills(tmp_path) == count
    assert num_oom_kills() is None or num_oom_kills() >= 0
