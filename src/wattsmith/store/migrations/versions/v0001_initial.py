"""The record as it first was."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "devices",
        _row_id(),
        _text("key", unique=True),
        _text("name"),
        _text("kind"),
        _integer("memory_bytes", nullable=True),
        _boolean("simulated"),
    )
    op.create_table(
        "workloads",
        _row_id(),
        _text("key", unique=True),
        _text("family"),
        _integer("batch"),
        _text("kind"),
        _text("precision"),
        _text("mode"),
        _text("layout"),
        _boolean("compiled"),
        _text("optimizer", nullable=True),
        _integer("accumulation"),
        _integer("devices"),
    )
    op.create_index("workloads_by_family", "workloads", ["family", "precision"])
    op.create_table(
        "runs",
        _row_id(),
        _text("point"),
        _double("measured_s"),
        _reference("workload_id", "workloads.id"),
        _reference("device_id", "devices.id"),
        _text("status"),
        _text("reason", nullable=True),
        _json("input_shape"),
        _boolean("has_condition"),
        _double("setting_power_limit_w", nullable=True),
        _double("setting_clock_hz", nullable=True),
        _double("setting_memory_clock_hz", nullable=True),
        _double("setting_cpu_clock_hz", nullable=True),
        _integer("setting_threads", nullable=True),
        _integer("setting_concurrency", nullable=True),
        _text("provenance_measured_at"),
        _text("provenance_session"),
        _text("provenance_hostname"),
        _text("provenance_driver", nullable=True),
        _integer("structure_parameters", nullable=True),
        _integer("structure_parameter_bytes", nullable=True),
        _integer("structure_input_bytes", nullable=True),
        _double("structure_flops", nullable=True),
        _double("structure_moved_bytes", nullable=True),
        _integer("structure_launches", nullable=True),
        _integer("structure_peak_bytes", nullable=True),
        _integer("structure_conv_layers", nullable=True),
        _integer("structure_dense_layers", nullable=True),
        _double("structure_conv_strength", nullable=True),
        _double("structure_dense_strength", nullable=True),
        _integer("times_steps", nullable=True),
        _double("times_mean_s", nullable=True),
        _double("times_median_s", nullable=True),
        _double("times_spread_s", nullable=True),
        _double("times_error_ratio", nullable=True),
        _double("times_first_s", nullable=True),
        _double("times_busy_s", nullable=True),
        _double("times_input_s", nullable=True),
        _double("consumption_window_s", nullable=True),
        _double("consumption_step_energy_j", nullable=True),
        _double("consumption_step_energy_error_j", nullable=True),
        _double("consumption_power_w", nullable=True),
        _text("consumption_energy_source", nullable=True),
        _integer("consumption_peak_tensor_bytes", nullable=True),
        _integer("consumption_peak_held_bytes", nullable=True),
        _integer("consumption_storage_bytes", nullable=True),
        _boolean("consumption_simulated", nullable=True),
        _double("condition_busy_ratio", nullable=True),
        _double("condition_clock_hz", nullable=True),
        _double("condition_memory_clock_hz", nullable=True),
        _double("condition_temperature_c", nullable=True),
        _double("condition_power_limit_w", nullable=True),
        _json("condition_throttled_by", nullable=True),
        sa.UniqueConstraint("point", "provenance_session", name="one_run_of_a_point_in_a_session"),
    )
    op.create_index("ix_runs_device_id", "runs", ["device_id"])
    op.create_index("ix_runs_workload_id", "runs", ["workload_id"])
    op.create_index("runs_by_session", "runs", ["provenance_session"])
    op.create_index("runs_by_time", "runs", ["measured_s", "id"])
    op.create_table(
        "workload_parameters",
        _reference("workload_id", "workloads.id", part_of=True),
        _text("name", primary_key=True),
        _text("type"),
        _double("number", nullable=True),
        _text("text"),
    )
    op.create_index("workload_parameters_by_name", "workload_parameters", ["name", "number"])
    op.create_table(
        "operator_counts",
        _reference("run_id", "runs.id", part_of=True),
        _text("operator", primary_key=True),
        _integer("calls"),
        _double("flops"),
        _double("moved_bytes"),
    )
    op.create_table(
        "run_versions",
        _reference("run_id", "runs.id", part_of=True),
        _text("name", primary_key=True),
        _text("version"),
    )


def _row_id() -> sa.Column[Any]:
    return sa.Column("id", _row_number(), primary_key=True)


def _row_number() -> sa.types.TypeEngine[Any]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _reference(name: str, target: str, *, part_of: bool = False) -> sa.Column[Any]:
    key = sa.ForeignKey(target, ondelete="CASCADE" if part_of else None)
    return sa.Column(name, _row_number(), key, nullable=False, primary_key=part_of)


def _integer(name: str, **options: Any) -> sa.Column[Any]:
    return _column(name, sa.BigInteger(), **options)


def _double(name: str, **options: Any) -> sa.Column[Any]:
    return _column(name, sa.Double(), **options)


def _text(name: str, **options: Any) -> sa.Column[Any]:
    return _column(name, sa.Text(), **options)


def _boolean(name: str, **options: Any) -> sa.Column[Any]:
    return _column(name, sa.Boolean(), **options)


def _json(name: str, **options: Any) -> sa.Column[Any]:
    return _column(name, sa.JSON(none_as_null=True), **options)


def _column(name: str, kind: sa.types.TypeEngine[Any], **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, **({"nullable": False} | options))
