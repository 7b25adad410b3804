"""`wattsmith feed`."""

import subprocess
import sys

from tests.feed.numbered import Numbered, stream_of
from typer.testing import CliRunner

from wattsmith import Feeder
from wattsmith.cli import app
from wattsmith.feed.pool import PoolMember
from wattsmith.feed.remote_greeting import read_token

COMMAND = [sys.executable, "-c", "from wattsmith.cli import main; main()", "feed"]


def test_a_token_is_made_once(tmp_path):
    token = tmp_path / "job.token"
    first, second = (CliRunner().invoke(app, ["feed", "token", str(token)]) for _ in range(2))
    assert first.exit_code == 0
    assert len(token.read_text().strip()) == 64
    assert "there already" in str(second.exception)


def test_workers_of_another_process_feed_a_trainer(tmp_path):
    door, token = f"unix:{tmp_path}/door", tmp_path / "job.token"
    subprocess.run([*COMMAND, "token", str(token)], check=True, capture_output=True)
    worker = subprocess.Popen([*COMMAND, "worker", "--connect", door, "--token-file", str(token), "--once"])
    fed = Feeder(Numbered(20), batch_size=4, seed=1, num_workers=1, listen=door, token_file=token)
    assert stream_of(fed) == stream_of(Feeder(Numbered(20), batch_size=4, seed=1))
    fed.resize(1)
    worker.terminate()
    assert worker.wait(10) is not None
    fed.close()


def test_a_pool_makes_the_token_that_its_jobs_prove(tmp_path):
    door, token = f"unix:{tmp_path}/pool", tmp_path / "pool.token"
    pool = subprocess.Popen(
        [*COMMAND, "pool", "--listen", door, "--token-file", str(token), "--workers", "3"],
        stderr=subprocess.PIPE,
        text=True,
    )
    with pool:
        assert "3 workers to be shared" in pool.stderr.readline()
        assert PoolMember(door, read_token(token), job="alone").leave_for(6.0, 1, 32) == 3
        pool.terminate()


def test_an_address_that_is_none_exits_with_2(tmp_path):
    done = subprocess.run(
        [*COMMAND, "worker", "--connect", "nowhere", "--token-file", str(tmp_path / "t")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "HOST:PORT" in done.stderr
