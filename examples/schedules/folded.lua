-- A portable schedule with an assignment of its own: round after round the workers are gone through
-- forwards, then backwards, so that who had a short chain gets a long one.
local folded = {
  name = "folded",
  order = "portable",
  pattern = function(map)
    local start = {}
    for i = 1, map.chains do start[i] = map.chains - i end -- from the last chain to the first
    return { start = start }
  end,
  assignment = function(batch)
    local queues, workers = {}, batch.workers
    for i = 0, batch.items - 1 do
      local round, place = i // workers, i % workers
      local worker = round % 2 == 0 and place or workers - 1 - place
      queues[worker + 1] = queues[worker + 1] or {}
      table.insert(queues[worker + 1], i)
    end
    for worker = 1, workers do queues[worker] = queues[worker] or {} end
    return queues
  end,
}

return rota.attention { head_dim = 64, heads = 8, kv_heads = 2, mask = causal, schedule = folded }
