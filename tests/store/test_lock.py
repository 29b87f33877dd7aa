"""One holder of a folder at a time, among threads, processes and machines: only the dead are taken over."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from processes import Child
from tsdfm.errors import UserError
from tsdfm.machine import machine, started
from tsdfm.store import lock as lock_module
from tsdfm.store.lock import NAME, held


def hold_for_ever(folder: str, go: str) -> None:
    with held(Path(folder)):
        Path(go).touch()
        time.sleep(3600)


def add_up(folder: str, times: int) -> None:
    """Read a number, wait, write it plus one: a second holder at the same time would lose a count."""
    done = 0
    while done < times:
        try:
            with held(Path(folder)):
                count = Path(folder) / "count"
                before = int(count.read_text())
                time.sleep(0.0005)
                count.write_text(str(before + 1))
                done += 1
        except UserError:
            continue


def holder(tmp_path: Path) -> Child:
    child = Child(hold_for_ever, str(tmp_path / "run"), str(tmp_path / "go"))
    while not (tmp_path / "go").exists():
        assert child.poll() is None, child.said()
        time.sleep(0.01)
    return child


def fake(folder: Path, **about: Any) -> Path:
    """A lock that some process left."""
    folder.mkdir(exist_ok=True)
    whole = {"host": "there", "machine": machine(), "pid": os.getpid(), "started": 1, "since": "then", "token": "t"}
    (folder / NAME).write_text(json.dumps(whole | about))
    return folder / NAME


def test_a_second_process_is_refused_and_a_killed_one_is_taken_over(tmp_path: Path) -> None:
    child = holder(tmp_path)
    with pytest.raises(
        UserError, match=rf"run is in use by process {child.pid} since .*: wait for it, or give"
    ) as said:
        held(tmp_path / "run").__enter__()
    assert "\n" not in str(said.value)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    with held(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())


def test_of_many_that_find_a_dead_one_each_has_it_alone(tmp_path: Path) -> None:
    fake(tmp_path)
    (tmp_path / "count").write_text("0")
    children = [Child(add_up, str(tmp_path), 25) for _ in range(4)]
    for child in children:
        assert child.wait() == 0, child.said()
    assert (tmp_path / "count").read_text() == "100"
    assert [path.name for path in tmp_path.iterdir()] == ["count"]


def test_a_slow_one_that_found_a_dead_holder_leaves_the_lock_of_a_faster_one_in_its_place(tmp_path: Path) -> None:
    dead = json.loads(fake(tmp_path).read_text())
    with held(tmp_path):
        before = (tmp_path / NAME).stat()
        lock_module._take_away(tmp_path / NAME, dead)
        after = (tmp_path / NAME).stat()
    assert (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)
    assert list(tmp_path.iterdir()) == []


def test_one_at_a_time_makes_or_removes_a_lock(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    with lock_module._alone(tmp_path), pytest.raises(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)


def test_the_same_thread_may_ask_again_and_another_may_not(tmp_path: Path) -> None:
    said: list[str] = []

    def other() -> None:
        try:
            held(tmp_path).__enter__()
        except UserError as problem:
            said.append(str(problem))

    with held(tmp_path) as one, held(tmp_path) as two:
        assert one is two
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(said) == 1
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize("about", [{"started": 1}, {"pid": 2**22 + 1}, {"pid": "x"}, {"pid": 10**30}])
def test_another_process_of_that_number_is_not_the_holder(tmp_path: Path, about: dict[str, Any]) -> None:
    fake(tmp_path, **about)
    with held(tmp_path) as lock:
        lock.check()


def test_a_dead_child_that_nobody_asked_for_is_dead(tmp_path: Path) -> None:
    end, wait = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(end, 1)
        os._exit(0)
    fake(tmp_path, pid=pid, started=started(pid))
    with pytest.raises(UserError, match=f"process {pid}"):
        held(tmp_path).__enter__()
    os.write(wait, b"x")
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert started(pid) == -1  # a zombie
    with held(tmp_path):
        pass
    os.waitpid(pid, 0)


@pytest.mark.parametrize("about", [{"machine": "another"}, {"machine": None}, {}])
def test_a_holder_on_another_machine(
    tmp_path: Path, about: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By signs of life: refused as soon as one is seen, taken over when none has been for long."""
    path = fake(tmp_path, **about)
    if not about:
        path.write_text('{"host": "cut sho')
    touched = path.stat().st_mtime
    now, looks = [touched], [0]

    def sleep(seconds: float) -> None:
        looks[0] += 1
        now[0] += seconds
        if looks[0] == 3 and alive:
            os.utime(path, (now[0], now[0]))

    monkeypatch.setattr(lock_module, "_clock", lambda _: now[0])
    monkeypatch.setattr(lock_module.time, "sleep", sleep)
    alive = True
    with pytest.raises(UserError, match=rf"in use by process .* on .*; if you know that it is gone, delete {path}"):
        held(tmp_path).__enter__()
    assert looks[0] == 3
    assert "waiting for a sign of life" in capsys.readouterr().err
    alive = False
    with held(tmp_path):
        assert now[0] - touched >= lock_module.SILENCE
    assert "has given no sign of life: it is taken over" in capsys.readouterr().err


def test_a_holder_touches_its_file(tmp_path: Path) -> None:
    with held(tmp_path):
        assert lock_module.HOLDERS.beating
        os.utime(tmp_path / NAME, (1, 1))
        lock_module.HOLDERS.touch()
        assert (tmp_path / NAME).stat().st_mtime > 1
        (tmp_path / NAME).unlink()
        lock_module.HOLDERS.touch()
    lock_module.HOLDERS.touch()
    assert not lock_module.HOLDERS.beating


def test_one_that_was_taken_over_finds_out(tmp_path: Path) -> None:
    with held(tmp_path) as lock:
        lock.check()
        (tmp_path / NAME).unlink()  # by a user who was sure
        lock.check()
        assert json.loads((tmp_path / NAME).read_text())["token"] == lock.token
        fake(tmp_path, machine="another", host="else\x1b[2J")
        with pytest.raises(UserError, match=r"taken over by process .* on else\\x1b\[2J"):
            lock.check()
    assert (tmp_path / NAME).exists()  # it is not ours any more


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(lock_module.os, "link", no_link)
    with held(tmp_path) as lock:
        lock.check()
        assert not lock_module._create(tmp_path / NAME, "other")


def test_the_lock_of_one_that_was_killed_at_its_end_goes(tmp_path: Path) -> None:
    lock_module.clear(tmp_path)
    with held(tmp_path):
        lock_module.clear(tmp_path)
        assert (tmp_path / NAME).exists()  # it is alive
    fake(tmp_path, machine="another")
    lock_module.clear(tmp_path)
    assert (tmp_path / NAME).exists()  # who knows
    fake(tmp_path)
    lock_module.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_one_left_goes_and_other_files_stay(tmp_path: Path) -> None:
    lock, left, other = (tmp_path / name for name in ("a[b]", "a[b].token", "ab.txt"))
    for path in (left, other):
        path.write_text("")
    with held(tmp_path / "run", lock):
        assert lock.exists()
    assert list(tmp_path.iterdir()) == [other]


def test_nothing_is_left_of_a_folder_in_which_nothing_was_made(tmp_path: Path) -> None:
    with held(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / NAME).is_file()
    assert list(tmp_path.iterdir()) == []
    with held(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "made").touch()
    assert (tmp_path / "a" / "b" / "made").exists()
    with pytest.raises(UserError, match="in the way"), held(tmp_path / "a" / "b" / "made"):
        pass


def test_a_forked_process_holds_nothing(tmp_path: Path) -> None:
    with held(tmp_path):
        pid = os.fork()
        if pid == 0:
            try:
                held(tmp_path).__enter__()
            except UserError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
