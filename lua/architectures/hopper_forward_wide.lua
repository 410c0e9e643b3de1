-- Tilings of the Hopper forward kernel for head dims beyond 256: templates/hopper/forward_wide.cuh.
local works = import "lua/architectures/hopper_works.lua"

return function(request)
  local spec = request.spec
  local reason = works.refusal(spec)
  if reason then return nil, reason end
  return works.tiling(request, works.products {
    template = "templates/hopper/forward_wide.cuh",
    score_planes = 1, -- P
    entry = "rota_forward",
    columns = { works.PAIR, works.columns_of(spec.head_dim_v) },
    tensors = { "q", "k", "v", "o" },
  })
end
