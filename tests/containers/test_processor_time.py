"""What the kernel has counted of a container's processes."""

from __future__ import annotations

import pytest

from orchestrator.containers.processor_time import read_counters

V1 = b"/sys/fs/cgroup/cpuacct/cpuacct.usage:1234567890\n"
V2 = b"""/sys/fs/cgroup/cpu.stat:usage_usec 2500000
/sys/fs/cgroup/cpu.stat:user_usec 2000000
/sys/fs/cgroup/cpu.stat:nr_periods 0
"""


@pytest.mark.parametrize(
    ("shown", "seconds"),
    [
        (V1, 1.23456789),
        (V2, 2.5),
        (b"", None),
        (b"/sys/fs/cgroup/cpuacct/cpuacct.usage:much\n", None),
        (b"/sys/fs/cgroup/cpu.stat:nr_usage_usec 5\n", None),
        (b"/sys/fs/cgroup/cpu.stat:usage_usec 99999999999999999999999\n", None),
    ],
)
def test_counters_of_both_versions_are_seconds(shown: bytes, seconds: float | None) -> None:
    assert read_counters(shown) == seconds
