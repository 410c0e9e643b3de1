-- The H100 and its kin, compute capability 9.0 exactly: wgmma and the copy engine. What these
-- kernels do not serve falls to lua/architectures/portable.lua; the reason is kept.
--
-- A tiling may have, beside what portable.lua says:
--   wgmma        {64, 128}: values of N, ascending, for which instructions.cuh gets Wgmma<N>
--   sum_along, sum_across   (forward) k steps of 16 of S and of P V: then Wgmma<tile_kv> and
--                Wgmma<head_dim_v> have these sums as a whole, and nothing else
--   tensor_maps  {{tensor = "q", rows = 128}, ...}: entries take a second argument, the tensors as
--                the copy engine reads them in boxes of 64 columns and so many rows; tiling.cuh
--                gets kMapQ, kMapK, kMapDO ... (names: generator/tiling.h's MAPPED_LIST)
--   launches     `overlaps = true`: may start before the kernel ahead of it on the stream has
--                ended; it calls wait_for_predecessor() before it reads what others write, or
--                waits for words that the kernel ahead, which does not overlap, has reset before
--                it let it start
--                grid "preparers" (backward, with the field `rows_beside`): blocks that take
--                query tiles in turn while the first workers run; row items are in their order
--                grid "row_workers" (forward): as many blocks as the field `workers` says share
--                the row items, in queues of about the same work
--                grid "joins" (forward): joins the pieces of query tiles that are cut, if the
--                fields pieces, piece_keys, piece_row_keys and join_rows say so
--                (generator/plan_pieces.h)
local forward = import "lua/architectures/hopper_forward.lua"
local backward = import "lua/architectures/hopper_backward.lua"
local materialised = import "lua/architectures/hopper_materialised.lua"
local forward_wide = import "lua/architectures/hopper_forward_wide.lua"

-- A file may have one tiling or a list, the one to be preferred first.
local function listed(found, reason)
  if found and found.template then return { found } end
  return found, reason
end

return {
  name = "hopper",
  priority = 10,
  code = "sm_90a",
  serves = function(request)
    local spec, target = request.spec, request.target
    if target.sm ~= 90 then return false, "for sm_90 alone" end
    if not target.tensor_maps then
      return false, "the driver makes no tensor maps: one for CUDA 12.0 or newer does"
    end
    if spec.dtype == "fp32" then return false, "no fp32 on its tensor cores" end
    if not request.aligned then return false, "the copy engine needs ROTA_LAYOUT_ALIGNED" end
    return true
  end,
  tilings = function(request, algorithm)
    if algorithm == "forward" then
      local wide = math.max(request.spec.head_dim, request.spec.head_dim_v) > 256
      return listed((wide and forward_wide or forward)(request))
    end
    if algorithm == "materialised" then return listed(materialised(request, algorithm)) end
    return listed(backward(request, algorithm))
  end,
}
