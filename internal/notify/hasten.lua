-- hasten.lua makes boxes of an app due now. A box whose first item is being posted stays claimed.
--
-- KEYS  1-6 see outbox.lua
-- ARGV  1-2 see outbox.lua   3 app   4 maximum number of boxes
-- Returns the number of boxes that were not due.

local app, n = ARGV[3], 0
for _, repo in ipairs(redis.call('ZRANGEBYSCORE', due_of(app), '(' .. number(now), '+inf', 'LIMIT', 0, ARGV[4])) do
  if redis.call('HEXISTS', claims, name_of(app, repo)) == 0 then
    redis.call('ZADD', due_of(app), number(now), repo)
    n = n + 1
  end
end
index(app)
return n
