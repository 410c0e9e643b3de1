-- Calls the functions of a schedule, and checks what they answer.
--
-- pattern(map, gang, costs, options) sees one sequence's tiles, of the query heads that share a kv
-- head (a group):
--   map.chains, map.q_tiles, map.group      kv tiles, query tiles, heads
--   map.n_q, map.n_k, map.tile_q, map.tile_kv
--   map.count(chain)                        tiles, of all heads
--   map.first(chain), map.last(chain)       outermost query tiles; nil where there is none
--   map.runs(chain, head)                   {{from, to}, ...}: its query tiles, ascending
--   map.kind(q_tile, chain, head)           "full", "partial" or "empty"
--   map.optimize(iterations)                an answer by generator/schedule_optimize.c, as it is
--   map.batch, map.sequence                 if batch_variant: {{n_q, n_k}, ...} and its own place
-- gang: how many chains may run side by side. costs: visit, partial, reduce, handoff, start.
--
-- and answers
--   visits   function(chain) -> list, or list per chain [0] .. [chains - 1]; each entry a query
--            tile or {from, to, step, head = h}: those of the chain's tiles that exist there.
--            Without `head` the whole list is gone through once for each head; with head = {1, 3}
--            ("all": {0, group - 1}) a range's tiles are visited one after another, each for all of
--            these heads. Default: ascending
--   start    list of all chains as they start. Default: ascending
--   ranks    who adds first to a query tile: "time" (as a gang that never waits would come),
--            "start" (as chains start), or a function(chain) or list per chain: lower numbers
--            first. Default: "start" for a portable schedule, else "time"
--   times    function(q_tile, chain, head) -> integer: the same, visit by visit
--   lanes    function(chain) or list per chain: the lane, from 0, that runs it. Default: the one
--            that is free first
--   gang     to use fewer lanes than there are
--   together how many (sequence, kv head) pairs "longest" takes together: instead of the schedule's
--   abreast  how many of a pair's chains run at once: as many pairs together as fill the workers,
--            whatever `together` says
--   tiers    function(chain) or list per chain: the tier, from 0, never less along `start`: second
--            and later ones are dealt some time after the first, and at the end tier by tier
--
-- assignment(batch) sees all chains of all sequences and kv heads as numbered items:
--   batch.items, batch.workers, batch.sequences, batch.kv_heads
--   batch.item(i) -> sequence, kv head, chain, visits, lane        i from 0
-- and answers a list of queues, each a list of items: one per worker; or, with more queues than
-- workers, in the order in which free workers take them.
local value = import "lua/value.lua"
local names = import "lua/names.lua"
local fail = names.fail

local pattern = {}

local function integer(what, x)
  local result = math.type(x) and math.tointeger(x)
  if not result then fail("%s: an integer is expected, not %s", what, value.kind(x)) end
  return result
end

-- A number of at least 1; 0 if it is not said.
local function count_of(what, x)
  local count = x and integer(what, x) or 0
  if x and count < 1 then fail("%s: at least 1 is expected, not %d", what, count) end
  return count
end

local function is_table(x) return value.kind(x) == "table" end

-- What belongs to a chain, from a function or a table that counts from 0.
local function for_chain(what, x, chain)
  if type(x) == "function" then return (x(chain)) end
  if is_table(x) then return x[chain] end
  fail("%s: a function or a table is expected, not a %s", what, value.kind(x))
end

local kinds = { [0] = "empty", "partial", "full" }

-- The map that a pattern function is given. C answers while the call lasts.
local function view_of(request)
  local map = {
    chains = request.chains, q_tiles = request.q_tiles, group = request.group,
    n_q = request.n_q, n_k = request.n_k, tile_q = request.tile_q, tile_kv = request.tile_kv,
    batch = request.batch, sequence = request.sequence,
  }
  local function column(chain) return host.ask("column", integer("chain", chain)) end
  function map.count(chain) return (column(chain)) end
  function map.first(chain)
    local count, first = column(chain)
    return count > 0 and first or nil
  end
  function map.last(chain)
    local count, _, last = column(chain)
    return count > 0 and last or nil
  end
  function map.runs(chain, head)
    local runs, at = {}, 0
    chain, head = integer("chain", chain), integer("head", head or 0)
    while true do
      local from, to = host.ask("run", chain, head, at)
      if not from then return runs end
      runs[#runs + 1] = { from, to }
      at = to + 1
    end
  end
  function map.kind(q_tile, chain, head)
    local kind = host.ask("kind", integer("chain", chain), integer("head", head or 0),
      integer("q_tile", q_tile))
    return kinds[kind]
  end
  function map.optimize(iterations)
    return { optimize = integer("iterations", iterations == nil and 16 or iterations) }
  end
  return map
end

---- Visits

local ALL_HEADS = -1 -- generator/schedule.h

-- The first and last head of an entry.
local function heads_of(map, chain, head)
  if head == nil then return ALL_HEADS, ALL_HEADS end
  if head == "all" then return 0, map.group - 1 end
  if is_table(head) and #head ~= 2 then
    fail("visits of chain %d: a head or {first, last} is expected, not a list of %d", chain, #head)
  end
  local first = integer("visits: head", is_table(head) and head[1] or head)
  local last = is_table(head) and integer("visits: head", head[2]) or first
  if first < 0 then fail("visits of chain %d: head %d", chain, first) end
  if last < first then fail("visits of chain %d: heads %d to %d", chain, first, last) end
  return first, last
end

-- One entry of a chain's list as from, to, step, first and last head.
local function run_of(map, chain, entry)
  if math.type(entry) then
    local tile = integer("visits", entry)
    return tile, tile, 1, ALL_HEADS, ALL_HEADS
  end
  if not is_table(entry) then
    fail("visits of chain %d: a query tile or {from, to} is expected, not a %s", chain,
      value.kind(entry))
  end
  local from = integer("visits: from", entry[1])
  local to = integer("visits: to", entry[2] == nil and from or entry[2])
  local step = entry[3] == nil and 1 or integer("visits: step", entry[3])
  return from, to, step, heads_of(map, chain, entry.head)
end

-- With times, tile by tile: those that exist, so that a wide run costs no more than a narrow one.
local function add_timed(add, map, times, chain, from, to, step, first, last)
  if step == 0 then fail("visits of chain %d: step 0", chain) end
  local top = map.q_tiles - 1 -- the first of the range's tiles that may exist:
  if step > 0 and from < 0 then from = from % step end
  if step < 0 and from > top then from = top - (top - from) % -step end
  for tile = from, step > 0 and math.min(to, top) or math.max(to, 0), step do
    for head = first, last do
      if host.ask("kind", chain, head, tile) ~= 0 then
        add(chain, head, head, tile, tile, 1, integer("times", times(tile, chain, head)))
      end
    end
  end
end

local function add_chain(add, map, chain, list, times)
  if not is_table(list) then
    fail("visits of chain %d: a list is expected, not a %s", chain, value.kind(list))
  end
  if not times then
    for i = 1, #list do
      local from, to, step, first, last = run_of(map, chain, list[i])
      add(chain, first, last, from, to, step, 0)
    end
    return
  end
  for round = 0, map.group - 1 do
    for i = 1, #list do
      local from, to, step, first, last = run_of(map, chain, list[i])
      if first == ALL_HEADS then
        add_timed(add, map, times, chain, from, to, step, round, round)
      elseif round == 0 then
        add_timed(add, map, times, chain, from, to, step, first, last)
      end
    end
  end
end

---- Answers: flat lists of integers for C (generator/script_schedule.c)

local known = { "abreast", "gang", "lanes", "optimize", "ranks", "start", "tiers", "times",
  "together", "visits" }

local function check_names(answer)
  for name in pairs(answer) do
    local fits = false
    for _, candidate in ipairs(known) do fits = fits or candidate == name end
    if not fits then
      fail("%s", names.unknown("field of a pattern", tostring(name), known))
    end
  end
end

-- A list from a function or table of the chains.
local function by_chain(what, map, x)
  local list = {}
  for chain = 0, map.chains - 1 do list[chain + 1] = integer(what, for_chain(what, x, chain)) end
  return list
end

local function ranks_of(schedule, answer)
  local ranks = answer.ranks
  if answer.times ~= nil then
    if type(answer.times) ~= "function" then fail("times: a function is expected") end
    if ranks ~= nil then fail("a pattern has ranks or times, not both") end
    return "given"
  end
  if ranks == nil then return schedule.order == "portable" and "start" or "time" end
  if type(ranks) ~= "string" then return "priority" end
  if ranks == "start" or ranks == "time" then return ranks end
  fail("ranks: %s", names.unknown("name", ranks, { "start", "time" }))
end

local function starts_of(map, start)
  if start == nil then return nil end
  if not is_table(start) then fail("start: a list of chains is expected") end
  if #start ~= map.chains then
    fail("start: a list of all %d chains is expected; it has %d", map.chains, #start)
  end
  local list = {}
  for i = 1, #start do list[i] = integer("start", start[i]) end
  return list
end

local function visits_of(map, answer)
  local runs, everything = {}, { { 0, map.q_tiles - 1 } }
  local function add(chain, first, last, from, to, step, time)
    local n = #runs
    runs[n + 1], runs[n + 2], runs[n + 3] = chain, first, last
    runs[n + 4], runs[n + 5], runs[n + 6], runs[n + 7] = from, to, step, time
  end
  for chain = 0, map.chains - 1 do
    local list = everything
    if answer.visits ~= nil then list = for_chain("visits", answer.visits, chain) end
    add_chain(add, map, chain, list, answer.times)
  end
  return runs
end

function pattern.call(schedule, options, request)
  local map = view_of(request)
  local answer = schedule.pattern(map, request.gang, request.costs, options)
  if not is_table(answer) then
    fail("the pattern function returned a %s; it should return a table such as "
      .. "{visits = function(chain) return {{0, map.q_tiles - 1}} end}", value.kind(answer))
  end
  check_names(answer)
  local ranks = ranks_of(schedule, answer)
  return {
    optimize = answer.optimize and integer("optimize", answer.optimize),
    start = starts_of(map, answer.start),
    ranks = ranks,
    priority = ranks == "priority" and by_chain("ranks", map, answer.ranks) or nil,
    lanes = answer.lanes ~= nil and by_chain("lanes", map, answer.lanes) or nil,
    gang = answer.gang and integer("gang", answer.gang) or 0,
    together = count_of("together", answer.together),
    abreast = count_of("abreast", answer.abreast),
    tiers = answer.tiers ~= nil and by_chain("tiers", map, answer.tiers) or nil,
    visits = not answer.optimize and visits_of(map, answer) or nil,
  }
end

---- Assignments

-- Items one after another, and where each queue ends.
function pattern.assign(schedule, request)
  local batch = {
    items = request.items, workers = request.workers, sequences = request.sequences,
    kv_heads = request.kv_heads,
  }
  function batch.item(i) return host.ask("item", integer("item", i)) end
  local queues = schedule.assignment(batch)
  if not is_table(queues) then
    fail("the assignment function returned a %s; it should return a list of queues",
      value.kind(queues))
  end
  local items, ends = {}, {}
  for i = 1, #queues do
    local queue = queues[i]
    if not is_table(queue) then
      fail("queue %d: a list of items is expected, not a %s", i, value.kind(queue))
    end
    for j = 1, #queue do items[#items + 1] = integer("queue", queue[j]) end
    ends[i] = #items
  end
  return { items = items, ends = ends }
end

return pattern
