-- Tilings of the Hopper kernels that pass matrices through memory: the backward pass of
-- templates/hopper/materialised.cuh. Tiles and stages are the template's own; only the widths of
-- the blocks of columns follow the head dims.
local works = import "lua/architectures/hopper_works.lua"

return function(request, algorithm)
  local spec = request.spec
  local reason = works.refusal(spec)
  if reason then return nil, reason end
  local tiling = works.tiling(request, {
    template = "templates/hopper/materialised.cuh",
    score_planes = 2, -- P and dS
    entry = "rota_backward",
    columns = { spec.head_dim, spec.head_dim_v },
    tensors = { "q", "k", "v", "d_o", "d_q", "d_k", "d_v" },
  })
  if spec.sink_logit then
    tiling.launches[3] =
      { entry = "rota_sink_gradient", grid = "heads", threads = 256, shared_bytes = 0 }
  end
  return tiling
end
