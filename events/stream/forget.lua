-- Forget: remove the keys of a group that was deleted. groups.lua precedes this script.
--
-- KEYS    1 stream   2 due index   3 failed attempts   4 parked index   5 labels; see take.lua
-- ARGV    1 group
-- Returns the number of keys removed: none if the group exists.
-- Refuses with WRONGTYPE if the key is not a stream, without changing anything.
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, group in ipairs(groups_of(KEYS[1])) do
    if group['name'] == ARGV[1] then return 0 end
  end
end
return redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
