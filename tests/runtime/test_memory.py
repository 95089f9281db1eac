"""Touched bytes are those of the region's own pages, whatever lies beside it."""

from __future__ import annotations

import mmap

from memopt.runtime.memory import allocate, touched_bytes


def test_neighbours_do_not_count():
    regions = [allocate(64 * mmap.PAGESIZE, pages=True) for _ in range(4)]
    if touched_bytes(regions[0]) is None:
        return  # a system that does not tell
    for region in regions:
        assert touched_bytes(region) == 0
    regions[1].data[: 3 * mmap.PAGESIZE] = 1
    regions[2].data[:] = 1
    assert [touched_bytes(region) // mmap.PAGESIZE for region in regions] == [0, 3, 64, 0]


def test_the_last_page_may_be_partly_ours():
    region = allocate(mmap.PAGESIZE + 1, pages=True)
    region.data[:] = 1
    assert touched_bytes(region) in (None, 2 * mmap.PAGESIZE)


def test_other_regions_do_not_tell():
    assert touched_bytes(allocate(100)) is None
