"""Routes of jobs, and of what is asked before one is submitted: structures, estimates, plans."""

import threading
from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.responses import Response

from wattsmith.serve.access import Body, By, Serving
from wattsmith.serve.answering import Limit, Named, Offset, power_w, told
from wattsmith.serve.bodies import (
    LARGEST,
    EstimateAsked,
    Jobs,
    Key,
    NewJob,
    Plain,
    PlanAsked,
    PlanMade,
    Plans,
    files_in,
    read,
)
from wattsmith.serve.failing import Failed
from wattsmith.serve.routing import Access, Routes
from wattsmith.terms.estimate import Estimate
from wattsmith.terms.service import JobState, ServedJob

MOST_LOG_BYTES = 1 << 20
PATIENCE_S = 5.0  # of who wants a plan while others have theirs made
_PLANNERS = threading.BoundedSemaphore(2)  # a plan may take seconds of a core
ROUTES = Routes("jobs")
door = ROUTES.door


@door("POST", "/structures", Access.SUBMIT, "Keep a traced step.", takes=Plain, gives=Key, status=201)
def keep_structure(service: Serving, by: By, body: Body) -> Response:
    return told({"key": service.keep_structure(read(Plain, body), by)}, 201)


@door("GET", "/structures/{key}", Access.READ, "A traced step.", gives=Plain, fails=(404, 422))
def structure(service: Serving, key: Named) -> Response:
    return told(service.structure(key))


@door(
    "POST", "/estimates", Access.READ, "What a step should cost.", takes=EstimateAsked, gives=Estimate, fails=(404, 501)
)
def estimate(service: Serving, by: By, body: Body) -> Response:
    asked: EstimateAsked = read(EstimateAsked, body)
    key = asked.structure if isinstance(asked.structure, str) else service.keep_structure(asked.structure, by)
    options = {name: getattr(asked, name) for name in ("device", "devices", "power_limit_w", "samples", "epochs")}
    return told(service.estimate(key, **options))


@door("POST", "/jobs", Access.SUBMIT, "Submit a job.", takes=NewJob, gives=ServedJob, status=201, fails=(404, 409, 501))
def submit(service: Serving, by: By, body: Body) -> Response:
    asked: NewJob = read(NewJob, body)
    files = files_in(asked.files)
    return told(service.submit(asked.job, files=files, structure=asked.structure, once=asked.once, by=by), 201)


@door("GET", "/jobs", Access.READ, "Jobs, the newest first.", gives=Jobs, fails=(422,))
def jobs(
    service: Serving,
    state: Annotated[list[JobState] | None, Query(max_length=20)] = None,
    by: Annotated[str | None, Query(max_length=100, pattern=r"^[^\x00]*$")] = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> Response:
    return told({"jobs": service.jobs(states=tuple(state or ()), by=by, limit=limit, offset=offset)})


@door("GET", "/jobs/{job}", Access.READ, "A job.", gives=ServedJob, fails=(404, 422))
def job(service: Serving, job: Named) -> Response:
    return told(service.job(job))


@door("POST", "/jobs/{job}/cancel", Access.SUBMIT, "Stop a job.", gives=ServedJob, fails=(404, 409, 422))
def cancel(service: Serving, by: By, job: Named) -> Response:
    return told(service.cancel(job, by))


@door(
    *("GET", "/jobs/{job}/log", Access.READ, "What a job has printed."),
    media="text/plain",
    fails=(404, 422),
    headers=("X-Next-Offset",),
)
def job_log(
    service: Serving,
    job: Named,
    stream: Literal["stdout", "stderr"] = "stdout",
    attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    offset: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_LOG_BYTES)] = 1 << 16,
) -> Response:
    printed = service.job_log(job, attempt=attempt, stream=stream, offset=offset, limit=limit)
    headers = {"X-Next-Offset": str(offset + len(printed))}
    return Response(printed, media_type="text/plain; charset=utf-8", headers=headers)


@door(
    "POST", "/plans", Access.SUBMIT, "Plan jobs on a pool.", takes=PlanAsked, gives=PlanMade, status=201, fails=(501,)
)
def plan(service: Serving, by: By, body: Body) -> Response:
    asked: PlanAsked = read(PlanAsked, body)
    wishes: dict[str, Any] = {"budget_w": power_w(asked.budget), "exact": asked.exact}
    wishes |= {
        name: value
        for name in ("objective", "deadline", "carbon", "tariff")
        if (value := getattr(asked, name)) is not None
    }
    if not _PLANNERS.acquire(timeout=PATIENCE_S):
        raise Failed(503, "others are having plans made; try again in a moment")
    try:
        key, made = service.plan(asked.jobs, asked.pool, wishes, by)
    finally:
        _PLANNERS.release()
    return told({"key": key, **made}, 201)


@door("GET", "/plans", Access.READ, "Plans, the newest first.", gives=Plans)
def plans(service: Serving) -> Response:
    return told({"plans": service.plans()})


@door("GET", "/plans/{key}", Access.READ, "A plan.", gives=Plain, fails=(404, 422))
def a_plan(service: Serving, key: Named) -> Response:
    return told(service.a_plan(key))
