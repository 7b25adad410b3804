#!/usr/bin/env bash
# Runs every benchmark and writes docs/results.md.
#
#   bash benchmarks/all.sh [--data DIR] [--official DIR] [--only NAME]… [--render] [--list]
#
# --data      public measurements (by default ../shared/data); what needs them is "not run here" without
# --official  a git repository of mlcommons/power-dev: the official checkers are then run beside ours
# --only      this benchmark; may be repeated
# --render    run nothing, write the page of what is kept in benchmarks/results
# --list      run nothing, print what would be run here
#
# Peers come with `pip install -e '.[bench,ray,loadgen]' -c constraints.txt`; PYTHON names another Python than
# .venv/bin/python. All of it takes about an hour, and wants an idle machine: what is beside it is told on the page.
# Ends with 1 when a bar is missed or a benchmark fails. One that lacks data, a peer or a GPU is not run, says so, and
# counts neither way.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Where it runs (anywhere; with a GPU; without one), the benchmark, and how. DIR and POWER-DEV are put in below.
benchmarks='
any  measure_peers
gpu  measure_gpu
cpu  record_speed       --device cpu
gpu  record_speed       --preset basic --points scripts/records/h200_points.jsonl.gz --minutes 1
any  record_repeat      h200 tests/recordings/h200_again.jsonl
any  record_coverage    --data DIR
any  estimate_accuracy  --data DIR
any  estimate_ranking
any  match_accuracy     --data DIR
any  plan_quality       --data DIR
any  closed_loop
any  control_faults     --rounds 200 --seed 2
any  tune_replay        --data DIR
gpu  tune_serving
cpu  feed_training      --device cpu
gpu  feed_training      --device cuda
cpu  feed_transport
gpu  feed_transport
any  report_corpus      --data DIR/mlperf --official POWER-DEV
any  report_analysis    --data DIR/mlperf
any  report_loopback    --official POWER-DEV
any  serve_load
'

python=${PYTHON:-.venv/bin/python}
data=../shared/data official='' only=' ' run=yes
while (($#)); do
  case $1 in
    --data) data=$2; shift 2 ;;
    --official) official=$2; shift 2 ;;
    --only) only+="$2 "; shift 2 ;;
    --render) run=no; shift ;;
    --list) run=list; shift ;;
    *) sed -n '2,16s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
done
if ! "$python" -c 'import wattsmith' 2>/dev/null; then
  echo "$python has no wattsmith: run bash scripts/setup first, or name another one: PYTHON=… bash benchmarks/all.sh" >&2
  exit 2
fi
for name in $only; do
  if [[ ! -f benchmarks/$name.py ]]; then
    echo "there is no benchmark $name; see bash benchmarks/all.sh --list" >&2
    exit 2
  fi
done

here=cpu
nvidia-smi --list-gpus >/dev/null 2>&1 && here=gpu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
bad=0
while [[ $run != no ]] && read -r where name arguments; do
  [[ -n $name && ($where == any || $where == "$here") ]] || continue
  [[ $only == ' ' || $only == *" $name "* ]] || continue
  [[ -n $official ]] || read -r arguments <<<"${arguments%--official POWER-DEV}"
  told="python benchmarks/$name.py${arguments:+ $arguments}"
  if [[ $run == list ]]; then
    echo "$told"
    continue
  fi
  printf '\n=== %s  %s\n' "$(date +%H:%M)" "$told"
  busy=$("$python" benchmarks/results/page.py busy)
  words=()
  for word in $arguments; do
    word=${word/#DIR/$data}
    words+=("${word/#POWER-DEV/$official}")
  done
  began=$SECONDS
  "$python" "benchmarks/$name.py" "${words[@]}" --json "$scratch/$name.json" </dev/null 2>&1 | tee "$scratch/$name.txt"
  code=${PIPESTATUS[0]}
  sed -i "s|$data|DIR|g" "$scratch/$name.txt"
  ((code == 0 || code == 2)) || bad=1
  [[ $where == gpu ]] && kind=(--gpu) || kind=()
  "$python" benchmarks/results/page.py keep "$name" --exit-code "$code" --took $((SECONDS - began)) --busy "$busy" \
    --figures "$scratch/$name.json" --said "$scratch/$name.txt" "${kind[@]}" -- "$told"
done <<<"$benchmarks"
[[ $run == list ]] || "$python" benchmarks/results/page.py render
exit $bad
