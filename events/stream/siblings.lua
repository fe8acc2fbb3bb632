-- Siblings: read parked entries of one key. They stay parked.
--
-- KEYS    1 stream   2 parked index   3 labels; see label in scripts.go
-- ARGV    1 group   2 the name that parked entries are pending under
--         3, 4 range of labels for ZRANGEBYLEX   5 maximum number of entries
--         6 maximum bytes of fields and values, which the last entry may exceed
-- Returns {last, {ID, {field, value, ...}}, ...}; last is the label to continue after, "" at the end
--         It skips entries that are no longer parked and removes them from the index, and skips those that have vanished from
--         the stream but are pending: take needs their labels, to report their keys.
-- Refuses with NOGROUP if the group or the stream does not exist.
local labels = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[3], ARGV[4], 'LIMIT', 0, tonumber(ARGV[5]))
local found, bytes = {''}, 0
for _, label in ipairs(labels) do
  if bytes >= tonumber(ARGV[6]) then break end
  found[1] = label
  local ms, seq = string.match(label, '%l(%d+)%-%l(%d+)$')
  local id = ms .. '-' .. seq
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)[1]
  local parked = pending and pending[2] == ARGV[2]
  local entry = parked and redis.call('XRANGE', KEYS[1], id, id)[1]
  if entry then
    found[#found + 1] = {id, entry[2]}
    for _, field in ipairs(entry[2]) do bytes = bytes + #field end
  elseif not parked then
    redis.call('ZREM', KEYS[2], label)
    redis.call('HDEL', KEYS[3], id)
  end
end
return found
