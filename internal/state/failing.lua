-- failing.lua removes old notes of a repository's failures, and the repository from the index if it has no notes: an older version has
-- removed it. The notes are lines as in notes.lua of events/stream.
--
-- KEYS    1 state of the repository (hash)   2 failing (ZSET)
-- ARGV    1 field of the notes   2 member of the index   3 time in ms of Redis' clock before which notes are removed
--         4… names of the notes to remove
-- Returns the number of notes removed.
-- Fails with WRONGTYPE if a key has another type, without changing anything.

redis.call('ZCARD', KEYS[2])
local kept, removed = {}, 0
for line in string.gmatch(redis.call('HGET', KEYS[1], ARGV[1]) or '', '[^\n]+') do
  local name, at = string.match(line, '^([^\t]*)\t(%d+)\t')
  local gone = false
  for i = 4, #ARGV do gone = gone or name == ARGV[i] and tonumber(at) < tonumber(ARGV[3]) end
  if gone then removed = removed + 1 else kept[#kept + 1] = line end
end
if #kept == 0 then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('ZREM', KEYS[2], ARGV[2])
elseif removed > 0 then
  redis.call('HSET', KEYS[1], ARGV[1], table.concat(kept, '\n'))
end
return removed
