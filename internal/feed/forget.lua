-- Forget: delete reports of followers that have not reported again.
--
-- KEYS    1 followers of the app: hash
-- ARGV    name of a follower, its report, …
-- Returns how many it deleted.
local deleted = 0
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then deleted = deleted + redis.call('HDEL', KEYS[1], ARGV[i]) end
end
return deleted
