"""Several jobs, one pool."""

import threading

import pytest
from tests.feed.numbered import Numbered, stream_of

from wattsmith import Feeder
from wattsmith.feed.pool import Pool, PoolMember
from wattsmith.feed.remote_greeting import TokenRefused
from wattsmith.terms.errors import BadTerm

TOKEN = "a token that nobody guesses"


@pytest.fixture
def pool(tmp_path):
    """A pool of eight workers."""
    pool = Pool(f"unix:{tmp_path}/pool", TOKEN, 8)
    serving = threading.Thread(target=pool.serve)
    serving.start()
    yield pool
    pool.close()
    serving.join(10)
    assert not serving.is_alive()


def member(pool, job, token=TOKEN, **chosen):
    return PoolMember(str(pool.address), token, job=job, **chosen)


def test_a_job_alone_may_have_what_it_can_use(pool):
    assert member(pool, "alone").leave_for(6.0, 1, 32) == 8


def test_two_jobs_share_and_one_that_goes_gives_back(pool):
    small, large = member(pool, "small"), member(pool, "large")
    small.leave_for(2.0, 1, 64)
    assert large.leave_for(6.0, 1, 64) == 6
    assert small.leave_for(2.0, 1, 64) == 2
    large.close()
    for _ in range(50):
        if small.leave_for(2.0, 1, 64) == 8:
            return
    pytest.fail("what the other job had was not given back")


def test_the_dearer_job_comes_first(pool):
    dear, cheap = member(pool, "dear", weight=10.0), member(pool, "cheap")
    cheap.leave_for(8.0, 1, 64)
    assert dear.leave_for(8.0, 1, 64) == 7
    assert cheap.leave_for(8.0, 1, 64) == 1


def test_more_jobs_than_workers_have_one_each(tmp_path):
    pool = Pool(f"unix:{tmp_path}/pool", TOKEN, 1)
    threading.Thread(target=pool.serve, daemon=True).start()
    assert [member(pool, name).leave_for(3.0, 1, 8) for name in ("a", "b")] == [1, 1]
    pool.close()


def test_where_the_pool_has_gone_the_last_answer_holds(pool):
    job = member(pool, "a")
    assert job.leave_for(4.0, 1, 32) == 8
    pool.close()
    assert job.leave_for(4.0, 8, 32) == 8


def test_a_pool_that_never_was_is_no_limit(tmp_path):
    assert PoolMember(f"unix:{tmp_path}/none", TOKEN).leave_for(4.0, 1, 8) is None


def test_a_job_without_the_token_is_refused(pool):
    with pytest.raises(TokenRefused):
        member(pool, "stranger", token="another token entirely").leave_for(4.0, 1, 8)


def test_a_pool_of_none_is_refused(tmp_path):
    with pytest.raises(BadTerm):
        Pool(f"unix:{tmp_path}/pool", TOKEN, 0)


def test_a_feeder_keeps_to_what_the_pool_allows(tmp_path):
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    pool = Pool(f"unix:{tmp_path}/pool", TOKEN, 1)
    threading.Thread(target=pool.serve, daemon=True).start()
    dataset = Numbered(1600, takes_s=0.002)
    fed = Feeder(
        dataset, batch_size=4, num_workers="auto", max_workers=2, pool=str(pool.address), token_file=token_file
    )
    fed.resize(2)
    numbers, _ = stream_of(fed)
    assert sorted(numbers) == list(range(1600))
    assert fed.report().workers == 1
    fed.close()
    pool.close()
