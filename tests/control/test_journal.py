"""What was is on disk before anything is changed, whole or not at all, and one process holds a device."""

import json
import os
import stat
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.control.journal import (
    Journal,
    all_journals,
    changing,
    default_state_folder,
    file_of,
    journals_of,
    open_state,
    read_journal,
    release_device,
    remove_journal,
    take_device,
    write_journal,
)
from wattsmith.control.restoring import restore_left_behind
from wattsmith.terms.control import DeviceHeld, JournalDamaged
from wattsmith.terms.errors import NotWritten

JOURNAL = Journal(
    lease="a",
    device="gpu:0",
    identity="GPU-1",
    sysfs="/sys",
    holder_pid=1,
    before={"power_limit": 700.0, "clock": None, "application_clock": (1e9, 2e9), "governor": "powersave"},
    wanted={"power_limit": 300.0},
)


@pytest.fixture
def folder(state):
    open_state(state)
    return state


def test_a_journal_is_read_as_it_was_written(folder):
    write_journal(folder, JOURNAL)
    assert read_journal(folder, "GPU-1") == JOURNAL
    remove_journal(folder, "GPU-1")
    remove_journal(folder, "GPU-1")
    assert read_journal(folder, "GPU-1") is None


def test_the_folder_is_its_owners_alone(folder):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_everyone_may_write_is_not_trusted(folder):
    folder.chmod(0o777)
    with pytest.raises(NotWritten, match="not trusted"):
        open_state(folder)
    with pytest.raises(NotWritten, match="not trusted"):
        restore_left_behind(folder)


def test_journals_lie_where_the_system_keeps_state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_folder() == tmp_path / "wattsmith" / "control"


@given(cut=st.integers(0, 10_000))
def test_a_journal_cut_off_anywhere_is_recognised(cut, tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    write_journal(folder, JOURNAL)
    path = file_of(folder, "GPU-1", ".journal")
    whole = path.read_bytes()
    path.write_bytes(whole[: cut % len(whole)])
    with pytest.raises(JournalDamaged, match="half-written or damaged"):
        read_journal(folder, "GPU-1")


def test_a_journal_with_another_number_in_it_is_recognised(folder):
    write_journal(folder, JOURNAL)
    path = file_of(folder, "GPU-1", ".journal")
    path.write_text(path.read_text().replace("700.0", "100.0"))
    with pytest.raises(JournalDamaged, match="checksum"):
        read_journal(folder, "GPU-1")


def test_a_journal_of_a_later_version_is_left_alone(folder):
    file_of(folder, "GPU-1", ".journal").write_text(json.dumps({"format": 99}))
    with pytest.raises(JournalDamaged, match="format 99"):
        read_journal(folder, "GPU-1")


def test_a_damaged_journal_does_not_hide_the_others(folder):
    write_journal(folder, JOURNAL)
    file_of(folder, "GPU-0", ".journal").write_text("{")
    found = dict(all_journals(folder))
    assert isinstance(found[file_of(folder, "GPU-0", ".journal")], JournalDamaged)
    assert journals_of(folder, "a") == [JOURNAL]
    assert journals_of(folder, "b") == []


def test_identities_that_look_alike_as_file_names_stay_apart(folder):
    assert file_of(folder, "a/b", ".lock") != file_of(folder, "a_b", ".lock")
    assert file_of(folder, "../../etc/passwd", ".lock").parent == folder


def test_a_journal_that_cannot_be_written_says_that_nothing_is_changed(tmp_path):
    with pytest.raises(NotWritten, match="nothing is changed"):
        write_journal(tmp_path / "not-there", JOURNAL)


def test_a_device_is_held_by_one(folder):
    held = take_device(folder, "GPU-1", "gpu:0")
    write_journal(folder, JOURNAL)
    with pytest.raises(DeviceHeld, match="held by process 1"):
        take_device(folder, "GPU-1", "gpu:0", wait_s=0.05)
    release_device(held)
    release_device(take_device(folder, "GPU-1", "gpu:0"))


def test_a_lock_handed_on_is_held_until_both_have_ended(folder):
    held = take_device(folder, "GPU-1", "gpu:0")
    heir = subprocess.Popen([sys.executable, "-c", "input()"], pass_fds=[held], stdin=subprocess.PIPE)
    os.close(held)
    with pytest.raises(DeviceHeld):
        take_device(folder, "GPU-1", "gpu:0")
    heir.kill()
    heir.communicate()
    release_device(take_device(folder, "GPU-1", "gpu:0", wait_s=1.0))


def test_a_change_waits_for_another_but_not_for_ever(folder):
    with changing(folder, "GPU-1", 0.0) as first, changing(folder, "GPU-1", 0.05) as second:
        assert first
        assert not second
    with changing(folder, "GPU-1", 0.0) as third:
        assert third
