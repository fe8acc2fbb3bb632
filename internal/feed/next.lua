-- Next: find the entries that follow others, without sending their contents.
--
-- KEYS    1 stream
-- ARGV    IDs of entries
-- Returns for each the ID of the next entry in the stream, or an empty string.
local next = {}
for i, id in ipairs(ARGV) do
  local found = redis.call('XRANGE', KEYS[1], '(' .. id, '+', 'COUNT', 1)
  next[i] = found[1] and found[1][1] or ''
end
return next
