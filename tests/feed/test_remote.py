"""Workers from elsewhere: the same stream as at home, each batch once, whatever becomes of them."""

import contextlib
import itertools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from tests.feed.numbered import Failing, Numbered, Stream, stream_of

from wattsmith import Feeder
from wattsmith.feed.remote import Elsewhere, engine_named, mixed, token_in
from wattsmith.feed.remote_address import NotListening, listen, parse_address
from wattsmith.feed.remote_greeting import TokenRefused, greet
from wattsmith.feed.remote_worker import NoTrainer, facts_here, work_for
from wattsmith.feed.wire import Channel
from wattsmith.terms.errors import BadInput, BadTerm

FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def door(tmp_path):
    """An address of one's own, and the token file."""
    return f"unix:{tmp_path}/door", tmp_path / "token"


@contextlib.contextmanager
def at_door(dataset, door, workers=2, **chosen):
    """A Feeder that listens at DOOR."""
    address, token_file = door
    chosen = {"batch_size": 4, "shuffle": True, "seed": 7, "num_workers": workers} | chosen
    fed = Feeder(dataset, listen=address, token_file=token_file, **chosen)
    try:
        yield fed
    finally:
        fed.close()


@contextlib.contextmanager
def workers_at(door, count, **chosen):
    """Processes that stand for workers on other machines."""
    address, token_file = door
    token = token_in(token_file)
    crew = [start_worker(address, token, **chosen) for _ in range(count)]
    try:
        yield crew
    finally:
        for process in crew:
            process.kill()
            process.join()


def start_worker(address, token, **chosen):
    process = FORK.Process(target=work_for, args=(address, token), kwargs={"patience_s": 20.0} | chosen)
    process.start()
    return process


def at_home(dataset, **chosen):
    return stream_of(Feeder(dataset, **{"batch_size": 4, "shuffle": True, "seed": 7} | chosen))


@pytest.mark.parametrize("large", [False, True], ids=["in messages", "in slots"])
def test_the_stream_is_the_one_made_at_home(door, large):
    dataset = Numbered(60, large=large)
    with workers_at(door, 2), at_door(dataset, door) as fed:
        numbers, _ = delivered = stream_of(fed)
    assert sorted(numbers) == list(range(60))
    assert delivered == at_home(dataset)


def test_over_tcp_and_for_several_epochs(tmp_path):
    listener, address = listen(parse_address("127.0.0.1:0"))
    listener.close()
    door = str(address), tmp_path / "token"
    with workers_at(door, 2), at_door(Numbered(40, large=True), door) as fed:
        epochs = [stream_of(fed) for _ in range(3)]
        assert fed.address == str(address)
    assert [sorted(numbers) for numbers, _ in epochs] == [list(range(40))] * 3
    assert len({hashed for _, hashed in epochs}) == 3


def test_an_iterable_dataset_is_cut_among_those_who_came(door):
    with workers_at(door, 2), at_door(Stream(40), door, shuffle=None) as fed:
        assert sorted(itertools.chain.from_iterable(batch.tolist() for batch in fed)) == list(range(40))


def test_one_worker_is_enough_to_begin_and_another_joins(door):
    dataset = Numbered(120, takes_s=0.002)
    address, token_file = door
    with workers_at(door, 1) as crew, at_door(dataset, door) as fed:

        def joined():
            for number, batch in enumerate(fed):
                yield batch
                if number == 3:
                    crew.append(start_worker(address, token_in(token_file)))

        delivered = stream_of(joined())
    assert delivered == at_home(Numbered(120))


def test_a_trainer_waits_for_workers_that_come_later(door):
    address, token_file = door
    token, crew = token_in(token_file), []
    later = threading.Timer(0.5, lambda: crew.append(start_worker(address, token)))
    later.start()
    try:
        with at_door(Numbered(20), door) as fed:
            assert stream_of(fed) == at_home(Numbered(20))
    finally:
        later.join()
        for process in crew:
            process.kill()
            process.join()


def test_workers_that_are_killed_lose_nothing(door):
    dataset, kills = Numbered(400, large=True, takes_s=0.006), 0
    address, token_file = door
    token = token_in(token_file)
    over = threading.Event()
    with workers_at(door, 3) as crew, at_door(dataset, door, workers=3) as fed:

        def kill_them():
            nonlocal kills
            while not over.wait(0.1):
                victim = crew.pop(0)
                os.kill(victim.pid, signal.SIGKILL)
                victim.join()
                kills += 1
                crew.append(start_worker(address, token))

        killer = threading.Thread(target=kill_them)

        def under_fire():
            for number, batch in enumerate(fed):
                if number == 5:
                    killer.start()
                yield batch

        try:
            numbers, _ = delivered = stream_of(under_fire())
        finally:
            over.set()
            killer.join()
        assert fed.report().lost >= 1
    assert sorted(numbers) == list(range(400))
    assert delivered == at_home(Numbered(400, large=True))
    assert kills >= 2


def test_a_worker_that_stands_still_is_overtaken(door):
    dataset = Numbered(80, takes_s=0.002)
    with workers_at(door, 2) as crew, at_door(dataset, door, lease_s=0.5) as fed:

        def with_one_stopped():
            for number, batch in enumerate(fed):
                if number == 4:
                    os.kill(crew[0].pid, signal.SIGSTOP)
                yield batch

        delivered = stream_of(with_one_stopped())
        os.kill(crew[0].pid, signal.SIGCONT)
    assert delivered == at_home(Numbered(80))


def test_a_trainer_that_comes_back_goes_on_where_it_was(door):
    dataset = Numbered(80, large=True)
    with workers_at(door, 2):
        with at_door(dataset, door) as fed:
            first = list(itertools.islice(fed, 7))
            state = fed.state_dict()
        with at_door(dataset, door, workers=1) as fed:
            fed.load_state_dict(state)
            rest = list(fed)
    assert stream_of(first + rest) == at_home(dataset)


def test_the_number_of_places_changes_while_it_runs(door):
    dataset = Numbered(160, takes_s=0.001)
    with workers_at(door, 3), at_door(dataset, door, workers=1) as fed:

        def resized():
            for number, batch in enumerate(fed):
                if number in (5, 20):
                    fed.resize({5: 3, 20: 1}[number])
                yield batch

        assert stream_of(resized()) == at_home(Numbered(160))


def test_what_a_dataset_raises_arrives_with_its_place(door):
    failing = Failing(20)
    with (
        workers_at(door, 1),
        at_door(failing, door, workers=1, shuffle=False) as fed,
        pytest.raises(ValueError, match="sample 13 is bad"),
    ):
        list(fed)


def test_no_relay_and_no_socket_stays_behind(door):
    with workers_at(door, 2), at_door(Numbered(20), door) as fed:
        stream_of(fed)
        relays = [process.pid for process in fed._iterator._workers]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in relays)  # noqa: PTH110
    assert not (token_in(door[1]) and os.path.exists(door[0].removeprefix("unix:")))  # noqa: PTH110


def test_a_worker_without_the_token_gets_nothing(door):
    with workers_at(door, 1), at_door(Numbered(200, takes_s=0.005), door, workers=2) as fed:
        batches = iter(fed)
        next(batches)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(door[0].removeprefix("unix:"))
            with pytest.raises(TokenRefused, match="refused by the trainer"):
                greet(Channel(stranger), "some other token", facts_here())
        assert len(list(batches)) == 49


def test_a_worker_of_another_version_is_told_why(door):
    with workers_at(door, 1), at_door(Numbered(200, takes_s=0.005), door, workers=2) as fed:
        batches = iter(fed)
        next(batches)
        with socket.socket(socket.AF_UNIX) as old:
            old.connect(door[0].removeprefix("unix:"))
            with pytest.raises(TokenRefused, match=r"runs wattsmith .*, the worker 0\.0\.1"):
                greet(Channel(old), token_in(door[1]), facts_here() | {"wattsmith": "0.0.1"})
        assert len(list(batches)) == 49


def test_a_dataset_that_the_worker_cannot_load_is_told_of(door):
    code = (
        "from tests.feed import numbered; del numbered.Numbered\n"
        "from wattsmith.feed.remote_worker import work_for; import sys\n"
        "work_for(sys.argv[1], sys.argv[2], patience_s=5.0)"
    )
    worker = subprocess.Popen([sys.executable, "-c", code, door[0], token_in(door[1])])
    try:
        with (
            at_door(Numbered(20), door, workers=1) as fed,
            pytest.raises(AttributeError, match="could not load the data"),
        ):
            list(fed)
    finally:
        worker.kill()
        worker.wait()


def test_without_a_trainer_a_worker_leaves(door):
    began_s = time.monotonic()
    with pytest.raises(NoTrainer, match=r"nobody listened at unix:.* for 0\.3 s"):
        work_for(door[0], token_in(door[1]), patience_s=0.3)
    assert time.monotonic() - began_s < 5


def test_when_the_trainer_has_gone_for_good_a_worker_leaves(door):
    with workers_at(door, 1, patience_s=0.5) as crew:
        with at_door(Numbered(20), door, workers=1) as fed:
            stream_of(fed)
        crew[0].join(10)
        assert crew[0].exitcode == 0


# Addresses and settings


@pytest.mark.parametrize("text", ["10.0.0.1:7070", "[::1]:80", "unix:/run/feed", "node7:0"])
def test_an_address_is_read_as_it_is_written(text):
    assert str(parse_address(text)) == text


@pytest.mark.parametrize("text", ["", "7070", "host:", ":7070", "host:port", "host:70707", "::1:80", "unix:"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(BadInput):
        parse_address(text)


def test_an_address_in_use_is_named():
    listener, address = listen(parse_address("127.0.0.1:0"))
    with listener, pytest.raises(NotListening, match=f"cannot listen at {address}"):
        listen(address)


def test_a_door_left_by_a_dead_trainer_is_taken_over(tmp_path):
    path = f"unix:{tmp_path}/door"
    for _ in range(2):
        listener, _ = listen(parse_address(path))
        listener.close()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"listen": "127.0.0.1:0"}, "token_file"),
        ({"listen": "127.0.0.1:0", "token_file": "x", "engine": "ray"}, "not both"),
        ({"listen": "nowhere", "token_file": "x"}, "HOST:PORT"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(wrong, says):
    with pytest.raises(BadInput, match=says):
        Elsewhere(**wrong)


def test_an_unknown_engine_is_answered_with_those_there_are():
    with pytest.raises(BadInput, match="no engine 'slurm'; there are: local"):
        engine_named("slurm")


def test_workers_from_elsewhere_need_places(door):
    with pytest.raises(BadTerm, match="places"):
        Feeder(Numbered(4), listen=door[0], token_file=door[1])


def test_machines_that_differ_are_told_of():
    alike, other = {"cpu": "AVX512", "torch": "2.13.0"}, {"cpu": "AVX2", "torch": "2.13.0"}
    assert mixed([alike, alike]) is None
    assert "CPU capability: AVX2, AVX512" in (mixed([alike, other]) or "")
