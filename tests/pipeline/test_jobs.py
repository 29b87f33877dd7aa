"""Models side by side: order, failures, and the same models as one after the other."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tsdfm.engine.signals import ECHO, Stopped
from tsdfm.errors import UserError
from tsdfm.pipeline.jobs import Crew, Job
from tsdfm.pipeline.plan import make_plan
from tsdfm.pipeline.run import run
from tsdfm.pipeline.settings import PipelineSettings
from tsdfm.pipeline.stages import trainings
from tsdfm.recipes import read_recipe

STAMP = "import sys,time;print('works on', sys.argv[1]);time.sleep(0.05);sys.exit(sys.argv[1] == 'b')"


def crew(tmp_path: Path, said: list[str], most: int = 2, script: str = STAMP) -> Crew:
    jobs = [
        Job("a", frozenset()),
        Job("c", frozenset({"b"})),
        Job("b", frozenset({"a", "not of this recipe"})),
        Job("d", frozenset({"a"})),
    ]
    return Crew(jobs, lambda key: [sys.executable, "-c", script, key], most, tmp_path / "logs", said.append)


def test_each_begins_after_what_it_needs_and_a_failure_stops_only_what_needs_it(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(UserError, match=r"b: works on b \(see .*b.log\); c: needs b"):
        crew(tmp_path, said).run()
    begun = [line.split()[1] for line in said if line.endswith("begins")]
    assert begun == ["a", "b", "d"]
    assert (tmp_path / "logs" / "d.log").read_text() == "works on d\n"
    assert any("b FAILED" in line for line in said)


def test_what_broke_off_is_begun_again_and_what_was_refused_is_not(tmp_path: Path) -> None:
    """b breaks off once, d is refused; c, which needs b, waits for its second try, and is told to stop."""
    script = (
        "import sys,pathlib;key=sys.argv[1];seen=pathlib.Path(sys.argv[2])/key;again=seen.exists();seen.touch();"
        "print('try', 2 if again else 1);sys.exit({'d': 2, 'c': 143}.get(key, key == 'b' and not again))"
    )
    said: list[str] = []
    made = crew(tmp_path, said, script=script)
    made.command = lambda key: [sys.executable, "-c", script, key, str(tmp_path)]
    made.retry, made.pause = 1, 0.2
    with pytest.raises(UserError) as problem:
        made.run()
    assert str(problem.value).startswith("d: try 1 (see ")
    assert "; c: try 1 (see " in str(problem.value)
    begun = [line.removeprefix("── ") for line in said if "begins" in line]
    assert begun.index("b begins") < begun.index("b begins again") < begun.index("c begins")
    assert not {"d begins again", "c begins again"} & set(begun)
    assert any(line.startswith("── b broke off and will begin again") for line in said)
    assert (tmp_path / "logs" / "b.log").read_text() == "try 1\ntry 2\n"
    assert made.failed.keys() == {"d", "c"}


def test_what_finds_no_memory_beside_others_waits_until_fewer_run(tmp_path: Path) -> None:
    """b and d begin together; d finds no memory while b runs, and is begun again after b. Alone, it is refused."""
    script = (
        "import sys,time,pathlib;key,home=sys.argv[1],pathlib.Path(sys.argv[2]);(home/key).touch();"
        "print('works' if (home/'b-ended').exists() or key!='d' else 'tsdfm: there is not enough memory: lower it');"
        "[time.sleep(0.02) for _ in range(500) if key=='b' and not (home/'d').exists()];"
        "time.sleep(0.5*(key=='b'));ended=(home/'b-ended').exists();key!='b' or (home/'b-ended').touch();"
        "sys.exit(0 if key!='d' or ended else 2)"
    )
    said: list[str] = []
    made = crew(tmp_path, said)
    made.command = lambda key: [sys.executable, "-c", script, key, str(tmp_path)]
    made.run()
    assert any(line.startswith("── d found no memory beside the others") for line in said)
    assert said.index("── d begins again") > next(i for i, line in enumerate(said) if line.startswith("── b is done"))
    made = crew(tmp_path, said, most=1, script="print('tsdfm: there is not enough memory');raise SystemExit(2)")
    with pytest.raises(UserError, match="a: tsdfm: there is not enough memory"):
        made.run()


def test_two_that_find_no_memory_beside_each_other_run_one_after_the_other(tmp_path: Path) -> None:
    """The second to end was beside the first, though that one has ended by then; and no later one joins them."""
    script = (
        "import sys,time,pathlib;key,home=sys.argv[1],pathlib.Path(sys.argv[2]);first=not (home/key).exists();"
        "(home/key).touch();short=first and key in 'ab';both=lambda:all((home/k).exists() for k in 'ab');"
        "[time.sleep(0.02) for _ in range(500) if short and not both()];"
        "time.sleep(0.4*(short and key=='b'));print('tsdfm: there is not enough memory' if short else key);"
        "sys.exit(2 if short else 0)"
    )
    said: list[str] = []
    jobs = [Job(key, frozenset()) for key in "abc"]
    Crew(jobs, lambda key: [sys.executable, "-c", script, key, str(tmp_path)], 2, tmp_path / "logs", said.append).run()
    running = set[str]()
    for line in said:
        key = line.split()[1]
        running = running | {key} if "begins" in line else running - {key}
        assert not ("again" in line and len(running) > 1)
    assert [job.tries for job in jobs] == [1, 1, 1]


def test_no_more_than_asked_for_run_at_once(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(UserError):
        crew(tmp_path, said, most=1).run()
    running = 0
    for line in said:
        running += 1 if line.endswith("begins") else -1
        assert running <= 1


def test_the_models_of_a_recipe_and_what_they_need() -> None:
    jobs = {each.key: each.needs for each in trainings(make_plan(read_recipe("ablate_shaping"), Path("out")))}
    assert jobs["teacher-mask"] == frozenset()
    assert jobs["ts-ratio-mask"] == {"fs-dfm-mask", "ratio-mask"}
    assert jobs["ratio-uniform"] == {"teacher-uniform", "compass-uniform", "fs-dfm-uniform"}


TINY = """
sources = ["uniform"]
[corpus]
name = "world:small"
limit = 300
[tokens]
length = 36
layout = "document"
[teacher.net]
width = 32
depth = 1
heads = 2
[teacher.loop]
steps = 3
batch = 4
[student]
share = 0.5
[student.loop]
steps = 2
batch = 4
[students.one]
"""


def test_jobs_train_the_same_models_as_one_process(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    weights = {}
    for jobs, where in ((1, "plain"), (2, "jobs")):
        out = tmp_path / where
        run(PipelineSettings(recipe=str(tmp_path / "tiny.toml"), out=out, jobs=jobs))
        for name in ("teacher", "one"):
            found = json.loads((out / f"{name}-uniform" / "manifest.json").read_text())
            weights[where, name] = found["files"]["model.safetensors"]["sha256"]
    for name in ("teacher", "one"):
        assert weights["plain", name] == weights["jobs", name]
    assert "one, uniform source" in (tmp_path / "jobs" / "logs" / "one-uniform.log").read_text()
    with pytest.raises(UserError, match="did you mean 'one-uniform'"):
        run(PipelineSettings(recipe=str(tmp_path / "tiny.toml"), out=tmp_path / "jobs", only="oen-uniform"))


def test_a_signal_is_passed_on_and_waited_for(tmp_path: Path) -> None:
    child = (
        "import signal,sys,time;signal.signal(signal.SIGTERM,lambda *_:(open(sys.argv[1],'w').close(),sys.exit(143)));"
        "print('up',flush=True)\nwhile True: time.sleep(0.01)"  # a signal just before a long sleep would be lost
    )
    mark, logs = tmp_path / "saved", tmp_path / "logs"
    script = (
        "from pathlib import Path;import sys;from tsdfm.pipeline.jobs import Crew,Job;"
        f"command = lambda key: [sys.executable, '-c', {child!r}, {str(mark)!r}];"
        f"Crew([Job('a', frozenset())], command, 1, Path({str(logs)!r})).run()"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    while process.poll() is None and not is_up(logs / "a.log"):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert mark.is_file()


def test_a_second_ctrl_c_does_not_wait_for_what_runs(tmp_path: Path) -> None:
    child = (
        "import os,signal,time;[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT)];"
        "print('up\\n%d' % os.getpid(),flush=True);time.sleep(3600)"
    )
    logs = tmp_path / "logs"
    script = (
        "from pathlib import Path;import sys;from tsdfm.pipeline.jobs import Crew,Job;"
        f"command = lambda key: [sys.executable, '-c', {child!r}];"
        f"Crew([Job('a', frozenset())], command, 1, Path({str(logs)!r})).run()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while process.poll() is None and not (is_up(logs / "a.log") and (logs / "a.log").read_text().count("\n") == 2):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    for line in process.stderr:
        if line == "stopping: what runs saves first; Ctrl-C again ends now\n":
            break
    time.sleep(2 * ECHO)
    os.kill(process.pid, signal.SIGINT)
    assert process.stderr.read().endswith("KeyboardInterrupt\n")
    assert process.wait() == -signal.SIGINT  # as Python ends where nobody catches it
    with pytest.raises(ProcessLookupError):
        os.kill(int((logs / "a.log").read_text().split()[1]), 0)


def is_up(log: Path) -> bool:
    return log.is_file() and log.read_text().startswith("up\n")


def test_when_the_time_is_up_all_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The crew's clock stands still until b and d are up, however long that takes, and is then past the limit."""
    child = (
        "import signal,sys,time;signal.signal(signal.SIGTERM,lambda *_:(print('saved',flush=True),sys.exit(143)));"
        # a signal just before a long sleep would be lost
        "print('up',flush=True)\nwhile sys.argv[1] != 'a': time.sleep(0.01)"
    )
    said: list[str] = []
    made = crew(tmp_path, said, script=child)
    made.limit = 3.0
    logs = [made.logs / "b.log", made.logs / "d.log"]
    clock = SimpleNamespace(monotonic=lambda: 9.0 if all(map(is_up, logs)) else 0.0, sleep=time.sleep)
    monkeypatch.setattr("tsdfm.pipeline.jobs.time", clock)
    with pytest.raises(Stopped) as stopped:
        made.run()
    monkeypatch.undo()
    assert stopped.value.code == 128 + signal.SIGTERM
    assert (tmp_path / "logs" / "b.log").read_text() == "up\nsaved\n"
    assert "goes on with: c, b, d" in said[-1]
    quick = crew(tmp_path, said, script="pass")
    quick.limit = 3600.0
    quick.run()  # in time
    for wrong in ({"limit": 0.0, "jobs": 2}, {"limit": 9.0}, {"limit": 9.0, "jobs": 2, "only": "a"}):
        with pytest.raises(UserError, match="limit"):
            PipelineSettings(recipe="tiny_cpu", **wrong)  # type: ignore[arg-type]
