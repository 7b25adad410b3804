"""Steps on several devices, from one device's work and the links between them."""

import pytest
from hypothesis import assume, given
from hypothesis.strategies import floats, integers, lists

from wattsmith.estimate.parallel import (
    Cluster,
    DeviceWork,
    Link,
    MeasuredReduce,
    Split,
    all_reduce_s,
    calibrate_link,
    data_parallel_step_s,
    exposed_reduce_s,
    layers_by_stage,
    link_of_group,
    on_devices,
    parallel_step,
    pipeline_s,
    send_s,
    sheet_link,
)
from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.work import Interval, Prediction

GIGABYTE = 10**9
PLAIN = Link(bandwidth_bytes_per_s=GIGABYTE, latency_s=0.0, source="assumed")
LATE = Link(bandwidth_bytes_per_s=GIGABYTE, latency_s=0.5, source="assumed")
links = integers(1, 1000).map(lambda gb: Link(bandwidth_bytes_per_s=gb * 1e9, latency_s=1e-5, source="assumed"))


class TestAllReduce:
    def test_two_devices_send_each_byte_once(self):
        assert all_reduce_s(GIGABYTE, 2, PLAIN) == 1.0

    def test_four_devices_send_three_quarters_twice(self):
        assert all_reduce_s(GIGABYTE, 4, PLAIN) == 1.5

    def test_the_latency_comes_on_top(self):
        assert all_reduce_s(GIGABYTE, 2, LATE) == 1.5

    def test_one_device_has_nobody_to_talk_to(self):
        assert all_reduce_s(GIGABYTE, 1, LATE) == 0.0

    def test_nothing_is_sent_in_no_time(self):
        assert all_reduce_s(0, 8, LATE) == send_s(0, LATE) == 0.0

    @given(floats(1, 1e12), integers(2, 1000), links)
    def test_more_devices_never_take_less(self, payload_bytes, devices, link):
        assert all_reduce_s(payload_bytes, devices + 1, link) >= all_reduce_s(payload_bytes, devices, link)


class TestLink:
    def test_two_exact_timings_give_the_link_back(self):
        points = [
            MeasuredReduce(payload_bytes=GIGABYTE, devices=2, duration_s=1.5),
            MeasuredReduce(payload_bytes=2 * GIGABYTE, devices=2, duration_s=2.5),
        ]
        link = calibrate_link(points)
        assert link.source == "measured"
        assert link.latency_s == pytest.approx(0.5)
        assert link.bandwidth_bytes_per_s == pytest.approx(GIGABYTE)

    @given(links, lists(floats(1e6, 1e9), min_size=2, max_size=6, unique=True), integers(2, 16))
    def test_timings_made_from_a_link_find_it_again(self, link, sizes, devices):
        assume(max(sizes) > 2 * min(sizes))
        points = [
            MeasuredReduce(payload_bytes=size, devices=devices, duration_s=all_reduce_s(size, devices, link))
            for size in sizes
        ]
        found = calibrate_link(points)
        assert found.bandwidth_bytes_per_s == pytest.approx(link.bandwidth_bytes_per_s, rel=1e-3)

    def test_a_latency_is_never_negative(self):
        points = [  # twice the bytes in three times the time
            MeasuredReduce(payload_bytes=GIGABYTE, devices=2, duration_s=1.0),
            MeasuredReduce(payload_bytes=2 * GIGABYTE, devices=2, duration_s=3.0),
        ]
        assert calibrate_link(points).latency_s == 0.0

    def test_timings_of_one_size_are_refused_with_advice(self):
        once = MeasuredReduce(payload_bytes=GIGABYTE, devices=2, duration_s=1.0)
        with pytest.raises(BadInput, match="time a small one"):
            calibrate_link([once, once])

    def test_timings_that_shrink_with_size_tell_no_bandwidth(self):
        points = [
            MeasuredReduce(payload_bytes=GIGABYTE, devices=2, duration_s=2.0),
            MeasuredReduce(payload_bytes=2 * GIGABYTE, devices=2, duration_s=1.0),
        ]
        with pytest.raises(BadInput, match="time larger ones"):
            calibrate_link(points)

    def test_a_data_sheet_says_that_it_is_one(self):
        assert sheet_link("nvlink4").source == "data sheet"

    def test_a_link_reaches_less_than_its_data_sheet(self):
        assert sheet_link("nvlink4").bandwidth_bytes_per_s < 450e9

    def test_an_unknown_link_lists_the_known_ones(self):
        with pytest.raises(BadInput, match=r"string.*nvlink4"):
            sheet_link("string")

    @pytest.mark.parametrize(
        "wrong",
        [{"bandwidth_bytes_per_s": 0.0}, {"latency_s": -1.0}, {"source": "hearsay"}],
        ids=lambda w: next(iter(w)),
    )
    def test_a_link_that_cannot_be_is_refused(self, wrong):
        with pytest.raises(BadTerm, match=next(iter(wrong))):
            Link(**({"bandwidth_bytes_per_s": 1.0, "latency_s": 0.0, "source": "measured"} | wrong))


class TestDataParallel:
    def test_one_device_takes_its_own_time(self):
        assert data_parallel_step_s(3.0, 2.0, GIGABYTE, 1, PLAIN) == 3.0

    def test_a_link_that_keeps_up_leaves_only_the_last_bucket(self):
        # Ten buckets of 0.1 s each leave while backward runs for two seconds.
        step_s = data_parallel_step_s(3.0, 2.0, GIGABYTE, 2, PLAIN, bucket_bytes=GIGABYTE / 10)
        assert step_s == pytest.approx(3.1)

    def test_a_slow_link_is_busy_from_the_first_bucket_on(self):
        # 4 s of sending begin when the first of four buckets is full, a quarter into a backward of 2 s.
        step_s = data_parallel_step_s(3.0, 2.0, 4 * GIGABYTE, 2, PLAIN, bucket_bytes=GIGABYTE)
        assert step_s == pytest.approx(3.0 + 4.0 - 1.5)

    def test_without_overlap_all_of_it_shows(self):
        assert exposed_reduce_s(0.0, GIGABYTE, 2, PLAIN) == pytest.approx(1.0)

    def test_backward_is_a_part_of_the_step(self):
        with pytest.raises(BadTerm, match="backward_s"):
            data_parallel_step_s(1.0, 2.0, GIGABYTE, 2, PLAIN)

    @given(floats(0, 10), floats(0, 1e11), integers(1, 64), links)
    def test_the_step_lies_between_full_overlap_and_none(self, backward_s, gradient_bytes, devices, link):
        step_s = data_parallel_step_s(backward_s + 1, backward_s, gradient_bytes, devices, link)
        alone_s = exposed_reduce_s(0.0, gradient_bytes, devices, link)
        assert backward_s + 1 <= step_s <= (backward_s + 1 + alone_s) * (1 + 1e-12)


class TestOnDevices:
    ALONE = Prediction(
        step_s=Interval(value=3.0, low=2.0, high=4.0),
        memory_bytes=Interval(value=8.0, low=7.0, high=9.0),
        power_w=Interval(value=100.0, low=90.0, high=110.0),
        step_energy_j=Interval(value=300.0, low=200.0, high=400.0),
        from_runs=5,
        inside_record=True,
    )
    TIMED = Link(bandwidth_bytes_per_s=GIGABYTE, latency_s=0.0, source="measured")

    def test_one_device_is_left_as_it_is(self):
        assert on_devices(self.ALONE, 1, GIGABYTE, PLAIN) is self.ALONE

    def test_nothing_to_send_costs_no_time_and_twice_the_energy(self):
        told = on_devices(self.ALONE, 2, 0, self.TIMED)
        assert told.step_s == self.ALONE.step_s
        assert told.power_w.value == 200.0
        assert told.step_energy_j.value == 600.0

    def test_each_device_keeps_as_much_as_one_alone(self):
        assert on_devices(self.ALONE, 8, GIGABYTE, self.TIMED).memory_bytes == self.ALONE.memory_bytes

    def test_a_longer_step_costs_more_energy(self):
        told = on_devices(self.ALONE, 2, 10 * GIGABYTE, self.TIMED)
        assert told.step_energy_j.value == pytest.approx(2 * 100.0 * told.step_s.value)

    def test_a_timed_link_leaves_the_prediction_inside_the_record(self):
        assert on_devices(self.ALONE, 2, GIGABYTE, self.TIMED).inside_record

    def test_a_link_that_was_not_timed_is_a_doubt(self):
        told = on_devices(self.ALONE, 2, GIGABYTE, sheet_link("pcie4"))
        assert not told.inside_record
        assert told.why_doubtful == "the link is as its data sheet says, not timed"

    def test_a_link_that_was_not_timed_widens_the_interval(self):
        timed = on_devices(self.ALONE, 2, 10 * GIGABYTE, self.TIMED).step_s
        assumed = on_devices(self.ALONE, 2, 10 * GIGABYTE, PLAIN).step_s
        assert assumed.value == timed.value
        assert assumed.low < timed.low
        assert assumed.high > timed.high

    def test_a_step_that_was_not_predicted_cannot_be_shared(self):
        with pytest.raises(BadTerm, match="one device"):
            on_devices(Prediction(), 2, GIGABYTE, PLAIN)


class TestPipeline:
    def test_equal_stages_have_the_familiar_bubble(self):
        assert pipeline_s([1.0] * 4, 8) == 8.0 * (1 + 3 / 8)

    def test_one_stage_has_no_bubble(self):
        assert pipeline_s([2.0], 5) == 10.0

    def test_the_slowest_stage_sets_the_pace(self):
        assert pipeline_s([1.0, 3.0], 2) == 7.0

    def test_layers_that_do_not_divide_go_to_the_first_stages(self):
        assert layers_by_stage(10, 4) == (3, 3, 2, 2)

    def test_a_stage_without_a_layer_is_refused(self):
        with pytest.raises(BadTerm, match="use 1 to 2"):
            layers_by_stage(2, 3)


class TestParallelStep:
    WORK = DeviceWork(layers=4, layer_s=1.0, last_s=2.0, update_s=0.5)

    def test_one_device_does_it_all(self):
        told = parallel_step(self.WORK, Split(micro_batches=3), Cluster(inside=PLAIN))
        assert told.step_s == 3 * (4 + 2) + 0.5
        assert told.links == ()

    def test_two_stages_wait_for_the_one_with_the_output(self):
        # Stages of 2 s and 4 s: the first micro-batch takes 6 s, the second comes 4 s later.
        told = parallel_step(self.WORK, Split(pipeline=2, micro_batches=2), Cluster(inside=PLAIN))
        assert told.step_s == 6 + 4 + 0.5
        assert (told.work_s, told.bubble_s) == (8.0, 2.0)

    def test_a_hand_over_counts_once_between_two_stages(self):
        work = DeviceWork(layers=2, layer_s=1.0, boundary_bytes=GIGABYTE)
        told = parallel_step(work, Split(pipeline=2), Cluster(inside=PLAIN))
        assert told.step_s == 2.0 + 2.0  # one second there, one second for the gradient to come back

    def test_tensor_shares_are_added_up_four_times_a_layer(self):
        work = DeviceWork(layers=2, layer_s=1.0, boundary_bytes=GIGABYTE)
        told = parallel_step(work, Split(tensor=2), Cluster(inside=PLAIN))
        assert told.tensor_s == 2 * 4 * 1.0
        assert told.links == (PLAIN,)

    def test_gradients_are_added_up_once_a_step(self):
        work = DeviceWork(layers=1, layer_s=1.0, gradient_bytes=GIGABYTE)
        told = parallel_step(work, Split(data=2, micro_batches=5), Cluster(inside=PLAIN))
        assert told.step_s == pytest.approx(5.0 + 1.0)

    @given(
        floats(0, 10), integers(1, 8), integers(1, 8), integers(1, 4), integers(1, 16), floats(0, 1e9), floats(0, 1e9)
    )
    def test_the_parts_are_never_negative(self, last_s, data, tensor, stages, batches, boundary_bytes, gradient_bytes):
        work = DeviceWork(
            layers=7, layer_s=1.0, last_s=last_s, boundary_bytes=boundary_bytes, gradient_bytes=gradient_bytes
        )
        split = Split(data=data, tensor=tensor, pipeline=stages, micro_batches=batches)
        told = parallel_step(work, split, Cluster(inside=PLAIN))
        assert min(told.work_s, told.tensor_s, told.data_s) >= 0
        assert told.bubble_s >= -1e-9 * told.step_s

    def test_the_devices_of_a_split_multiply(self):
        assert Split(data=2, tensor=4, pipeline=8).devices == 64


class TestCluster:
    FAST = Link(bandwidth_bytes_per_s=200e9, latency_s=1e-5, source="measured")
    SLOW = Link(bandwidth_bytes_per_s=25e9, latency_s=2e-5, source="data sheet")
    TWO = Cluster(inside=FAST, between=SLOW, devices_per_machine=8)

    def test_a_group_inside_a_machine_uses_its_links(self):
        assert link_of_group(self.TWO, members=8, stride=1) == self.FAST

    def test_members_of_one_machine_drive_their_adapters_side_by_side(self):
        assert link_of_group(self.TWO, members=8, stride=2).bandwidth_bytes_per_s == 100e9

    def test_one_member_per_machine_has_one_adapter(self):
        assert link_of_group(self.TWO, members=2, stride=8) == self.SLOW

    def test_adapters_are_no_faster_than_what_feeds_them(self):
        between = Link(bandwidth_bytes_per_s=100e9, latency_s=0.0, source="assumed")
        cluster = Cluster(inside=self.FAST, between=between, devices_per_machine=8)
        assert link_of_group(cluster, members=16, stride=1).bandwidth_bytes_per_s == 200e9

    def test_machines_without_a_link_between_them_are_refused(self):
        with pytest.raises(BadTerm, match="both"):
            Cluster(inside=self.FAST, devices_per_machine=8)
