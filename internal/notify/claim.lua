-- claim.lua claims the first items of outboxes that are due. A claimed item is not claimed again until its claim ends;
-- settle.lua renews that of a command.
--
-- KEYS  1-6 see outbox.lua
-- ARGV  1-2 see outbox.lua   3 duration of a claim, ms   4 unique token of these claims
--       5 maximum number of claims   6 maximum number for slow apps   7 limit of posts in flight to an app; a slow app has 1
--       then for each app with posts in flight, or that is slow: the app, the number of posts, and 1 if slow, else 0
-- Returns {next, ...}
--         next: ms until the next box that is not due yet; -1 if there is none
--         then for each claim its app, repo, number, failed attempts, and the item as JSON

local lasts, claim, left, left_slow, each = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local in_hand, slow, known = {}, {}, 0
for i = 8, #ARGV, 3 do
  in_hand[ARGV[i]], slow[ARGV[i]] = tonumber(ARGV[i + 1]), ARGV[i + 2] == '1'
  known = known + 1
end

local reply = {-1}
local ends = number(now + lasts)
-- Only known apps can be at their limit, so left + known apps are enough. Apps with the fewest posts in flight come
-- first, then those that have waited longest; otherwise a few apps with long queues would take every free slot.
local list, place = redis.call('ZRANGEBYSCORE', apps, '-inf', number(now), 'LIMIT', 0, left + known), {}
for i, app in ipairs(list) do place[app] = i end
table.sort(list, function(a, b)
  local in_a, in_b = in_hand[a] or 0, in_hand[b] or 0
  if in_a ~= in_b then return in_a < in_b end
  return place[a] < place[b]
end)
for _, app in ipairs(list) do
  local most, free = each, left
  if slow[app] then most, free = 1, math.min(left, left_slow) end
  local room = math.min(free, most - (in_hand[app] or 0))
  if room > 0 then
    for _, repo in ipairs(redis.call('ZRANGEBYSCORE', due_of(app), '-inf', number(now), 'LIMIT', 0, room)) do
      local n, item = head_of(app, repo)
      if n then
        redis.call('ZADD', due_of(app), ends, repo)
        redis.call('HSET', claims, name_of(app, repo), claim)
        for _, part in ipairs({app, repo, n, redis.call('HGET', tries, name_of(app, repo)) or '0', item}) do
          reply[#reply + 1] = part
        end
        left = left - 1
        if slow[app] then left_slow = left_slow - 1 end
      else -- the box was deleted
        forget(app, repo)
      end
    end
    index(app)
  end
end
local following = redis.call('ZRANGEBYSCORE', apps, '(' .. number(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if following[2] then reply[1] = tonumber(following[2]) - now end
return reply
