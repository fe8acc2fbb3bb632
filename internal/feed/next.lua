-- Next: find the entries that follow others, without sending their contents.
--
-- KEYS    1 stream
-- ARGV    IDs of entries in order
-- Returns for each the ID of the next entry in the stream, or an empty string. It reads each next entry once, which may be large.
local function precedes(a, b)
  local ams, aseq = string.match(a, '^(%d+)%-(%d+)$')
  local bms, bseq = string.match(b, '^(%d+)%-(%d+)$')
  if ams ~= bms then return tonumber(ams) < tonumber(bms) end
  return tonumber(aseq) < tonumber(bseq)
end

local next, last = {}, nil
for i, id in ipairs(ARGV) do
  if not last or last ~= '' and not precedes(id, last) then
    local found = redis.call('XRANGE', KEYS[1], '(' .. id, '+', 'COUNT', 1)
    last = found[1] and found[1][1] or ''
  end
  next[i] = last
end
return next
