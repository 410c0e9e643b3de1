#!/bin/sh
# rota plan --schedule, tune, calibrate and --tuning as a user meets them, and the paper's closed forms through the shipped
# schedules. Usage: command_schedules.sh ROTA SOURCE_DIRECTORY
. "$(dirname "$0")/command_checks.sh"
python() { python3 -c "import json, sys; plans = json.load(open('$scratch/out')); $1"; }
model='return rota.attention{head_dim = 64, heads = 4, kv_heads = 2, mask = causal}'
cd "$scratch" || exit 2

check "help names tune and calibrate" status 0 "$rota" --help
check "... indeed" out_has "calibrate"
for command in tune calibrate; do
  check "$command --help exits 0" status 0 "$rota" $command --help
done

# Figures.
check "all schedules as JSON" status 0 "$rota" plan -e "$model" --seqlen 1024x700 --batch 3 --arch sm_90 --schedule all --json
check "... with the fields that scripts rely on" python "
fields = {'schedule', 'makespan', 'work_bound', 'critical_path', 'stall_share', 'bound_ratio', 'depth_monotone', 'verified',
          'batch_variant', 'digest', 'plan_ms'}
names = {p['schedule'] for p in plans}
assert all(fields <= set(p) for p in plans), plans
assert {'ascending', 'descending', 'shift', 'symmetric_shift', 'shortest_first', 'longest_first', 'rotate', 'optimized'} <= names
assert all(p['verified'] and p['makespan'] >= p['work_bound'] and p['bound_ratio'] >= 1 for p in plans), plans
assert all(abs(p['stall_share'] - (1 - p['work_bound'] / p['makespan'])) < 1e-9 for p in plans)"
check "one schedule with its options" status 0 "$rota" plan -e "$model" --seqlen 1024 --schedule shift:stagger=3 --json
check "... under its name" python "assert [p['schedule'] for p in plans] == ['shift:stagger=3'], plans"
check "as a table" status 0 "$rota" plan -e "$model" --seqlen 1024 --schedule all
check "... with a line each" out_has "^symmetric_shift "
check "without --schedule the model's figures are added" status 0 "$rota" plan -e "$model" --seqlen 1024 --json
check "... to the backward pass" python "assert 'makespan' in plans[1] and 'makespan' not in plans[0] and plans[1]['tile_q'] > 0"
check "--workers and --costs count" status 0 "$rota" plan -e "$model" --tiles 4x6 --workers 3 --costs c=3,r=1 --schedule ascending \
  --json
check "... in units" python "
# Causal on 4 x 6 tiles, aligned at the end: 3 + 4 + 5 + 6 tiles of each of 2 x 2 heads.
assert plans[0]['workers'] == 3 and abs(plans[0]['work_bound'] - 18 * 4 * 4 / 3) < 1e-9, plans"
check "digest and bits do not depend on the batch" sh -c "
  a=\$('$rota' plan -e '$model' --seqlen 512 --schedule shift | tail -1 | awk '{print \$NF}')
  b=\$('$rota' plan -e '$model' --seqlen 512 --batch 5 --schedule shift | tail -1 | awk '{print \$NF}'); [ \"\$a\" = \"\$b\" ]"
check "an unknown schedule fails" status 1 "$rota" plan -e "$model" --schedule shfit
check "... with the known ones" err_has "known: ascending"
check "wrong costs fail" status 1 "$rota" plan -e "$model" --costs c=2,q=1
check "... and say what is known" err_has "known are c (visit)"
check "a cost file that is missing is named" status 1 "$rota" plan -e "$model" --costs none.lua
check "... so" err_has "none.lua"
check "tiles that are none are a usage error" status 64 "$rota" plan -e "$model" --tiles 3by4
check "no workers are a usage error" status 64 "$rota" plan -e "$model" --workers 0

# Pictures.
for workers in 8 132; do
  check "a chart of $workers workers" status 0 "$rota" plan -e "$model" --seqlen 2048 --schedule rotate --workers $workers \
    --svg "chart.svg"
  check "... is XML" python3 -c "import xml.dom.minidom as m; m.parse('chart.svg')"
  check "... and says for whom" grep -q "rotate on $workers workers" chart.svg
done
check "a picture shows one schedule" status 1 "$rota" plan -e "$model" --schedule all --svg chart.svg

# The paper.
check "closed forms" python3 "$source/tests/paper_forms.py" "$rota"

# Tuning: measured on the CPU device, where all schedules give what two_pass gives to a rounding.
check "tune measures" status 0 "$rota" tune -e "$model" --seqlen 200 --device cpu --output tuning.json
check "... and says where" out_has "shape 256x256x2 on cpu, measured"
cp "$scratch/out" table
check "the file is JSON of its format" python3 -c "
import json
file = json.load(open('tuning.json'))
assert file['format'] == 'rota tuning 1' and len(file['entries']) == 1
entry = file['entries'][0]
assert entry['measured'] and entry['device'] == 'cpu' and entry['shape'] == '256x256x2'
times = [c['milliseconds'] for c in entry['candidates']]
assert times == sorted(times) and entry['milliseconds'] == times[0] and len(times) > 8
forward = entry['forward']
times = [c['milliseconds'] for c in forward['candidates']]
assert times == sorted(times) and forward['milliseconds'] == times[0] and len(times) > 2
assert forward['tiling'] == forward['candidates'][0]['tiling'] and 'x' in entry['tiling']"
check "another shape adds an entry" status 0 "$rota" tune -e "$model" --seqlen 90 --device cpu --output tuning.json --json
check "... and keeps the first" python3 -c "import json; assert len(json.load(open('tuning.json'))['entries']) == 2"
check "the same shape replaces its own" status 0 "$rota" tune -e "$model" --seqlen 200 --device cpu --output tuning.json
check "... alone" python3 -c "import json; assert len(json.load(open('tuning.json'))['entries']) == 2"
python3 -c "
import json
file = json.load(open('tuning.json'))
for entry in file['entries']:
    entry['backward'], entry['schedule'], entry['tiling'] = 'ordered', 'rotate:stagger=3', 'auto'
    entry['forward']['tiling'] = '64x32'
json.dump(file, open('edited.json', 'w'))"
check "run adopts a file" status 0 "$rota" run -e "$model" --seqlen 200 --device cpu --backward --check --tuning edited.json
check "... and says so" err_has "backward ordered, schedule rotate:stagger=3, tiling auto, by measurement"
check "... of both passes" err_has "forward tiling 64x32, by measurement"
check "... which the forward pass takes" out_has "tiles 64 x 32"
sed 's/64x32/63x31/' edited.json >unknown.json
check "a file's tiling that is none is refused" status 1 "$rota" run -e "$model" --seqlen 200 --device cpu --tuning unknown.json
check "... with those that are" err_has "tiling.forward '63x31': .* have 128x128, "
check "... with other bits than without" sh -c "
  a=\$('$rota' run -e '$model' --seqlen 200 --device cpu --backward --tuning edited.json 2>/dev/null | grep -o 'digest .*' | tail -1)
  b=\$('$rota' run -e '$model' --seqlen 200 --device cpu --backward | grep -o 'digest .*' | tail -1); [ \"\$a\" != \"\$b\" ]"
check "... and those of the schedule by name" sh -c "
  a=\$('$rota' run -e '$model' --seqlen 200 --device cpu --backward --tuning edited.json 2>/dev/null | grep -o 'digest .*' | tail -1)
  b=\$('$rota' run -e '$model' --seqlen 200 --device cpu --backward --schedule rotate:stagger=3 | grep -o 'digest .*' | tail -1)
  [ \"\$a\" = \"\$b\" ]"
check "a shape without an entry keeps the model's choice" status 0 "$rota" run -e "$model" --seqlen 2000 --device cpu --tuning edited.json
check "... and says so" err_has "no entry for shape 2048x2048x2 on cpu"
echo '{"format": "something else"}' >wrong.json
check "a file that is none is refused" status 1 "$rota" run -e "$model" --seqlen 200 --device cpu --tuning wrong.json
check "... with its name" err_has "wrong.json: not a tuning file"
sed 's/"backward": "ordered"/"backward": "atomic"/g' edited.json >atomic.json
check "a file does not make a deterministic model another" status 1 "$rota" run -e "$model" --seqlen 200 --device cpu --backward --tuning atomic.json
check "... and says how it is said" err_has 'backward = "atomic" adds in arrival order'
sed 's/"forward": {/"forward": 5, "before": {/' edited.json >number.json
check "a pass that is none is refused" status 1 "$rota" run -e "$model" --seqlen 200 --device cpu --tuning number.json
check "... with what is wrong" err_has "number.json: .*forward tiling is not a name"
check "tune does not overwrite what is no tuning file" status 1 "$rota" tune -e "$model" --seqlen 64 --device cpu --output wrong.json
check "one pass alone" status 0 "$rota" tune -e "$model" --seqlen 200 --device cpu --direction forward --output tuning.json
check "... keeps the other" python3 -c "
import json
entry = json.load(open('tuning.json'))['entries'][0]
assert entry['forward']['measured'] and entry['backward'] and len(entry['candidates']) > 8"
check "... and needs none" status 0 "$rota" tune -e "$model" --seqlen 200 --arch sm_90 --direction forward --output forward.json
check "... so that adopting it" status 0 "$rota" plan -e "$model" --seqlen 200 --arch sm_90 --tuning forward.json
check "... leaves the backward pass alone" sh -c "grep -q 'forward tiling' '$scratch/err' && ! grep -q backward '$scratch/err'"
sed '0,/"tiling": "[0-9x]*"/s//"tiling": "128x112"/' forward.json >named.json
check "emit adopts a file" status 0 "$rota" emit -e "$model" --seqlen 200 --arch sm_90 --tuning named.json
check "... and its tiling" out_has "kTileKv = 112"
check "a tiling by name" status 0 "$rota" plan -e 'return rota.attention{head_dim = 64, tiling = {forward = "128x64"}}' --arch sm_90 --json
check "... is planned with" python "assert plans[0]['tile_q'] == 128 and plans[0]['tile_kv'] == 64, plans"
check "by the model, for an architecture" status 0 "$rota" tune -e "$model" --seqlen 4096 --arch sm_90 --output model.json
check "... which is said" out_has "by the model alone"
check "... whose times know no tiles, so that the ranking's first stand" python3 -c "
import json
entry = json.load(open('model.json'))['entries'][0]
assert {c['tiling_rank'] for c in entry['candidates']} == {1} and len(entry['forward']['candidates']) > 2, entry"
check "a length beyond the limit" status 1 "$rota" tune -e "$model" --seqlen 67108865 --arch sm_90 --output long.json
check "... is refused for what it is" err_has "the limit is 2^26"
check "plan adopts that" status 0 "$rota" plan -e "$model" --seqlen 4096 --arch sm_90 --tuning model.json
check "... too" err_has "by the model"

# Calibration needs a GPU.
check "calibrate on the CPU is refused" status 1 "$rota" calibrate --device cpu
check "... with what serves instead" err_has "lua/costs.lua"
cat >costs.lua <<END
return {device = "slow", kernels = {portable = {visit = 40.38, partial = 43.7, start = 23.75, staging = 0, reduce = 5.5, handoff = 24.57}}}
END
check "a cost file counts" status 0 "$rota" plan -e "$model" --seqlen 1024 --schedule ascending --arch sm_80 --costs costs.lua --json
slow=$(python "print(plans[0]['makespan'])")
check "the shipped ones" status 0 "$rota" plan -e "$model" --seqlen 1024 --schedule ascending --arch sm_80 --json
check "... are ten times faster" python "assert abs($slow / plans[0]['makespan'] - 10) < 0.1, ($slow, plans[0]['makespan'])"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
