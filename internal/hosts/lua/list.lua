-- list.lua follows host.lua. It changes nothing but expired permits.
--
-- Returns {limit, permits in use, repositories waiting, reason, end of the block, now, {credential, end of its block, …},
-- why the first repositories wait, or ''}. Times are in ms of Redis' clock. At most 256 wait queues and 32 blocked
-- credentials are read.

host.limit = tonumber(redis.call('HGET', state, 'limit') or '') or host.limit -- the reader may not know the maximum
local reason, ends = host_block()
local waiting, waits, tried = 0, '', 0
for _, class in ipairs(CLASSES) do
  for _, name in ipairs(redis.call('ZRANGE', state .. ':waiting:' .. class, 0, 255)) do
    local length = redis.call('ZCARD', state .. ':c:' .. name .. ':' .. class)
    waiting = waiting + length
    if not reason and length > 0 and waits == '' and tried < 8 then
      local c = credential(name)
      waits = block(c) or full(c, class) or ''
      tried = tried + 1
    end
  end
end
local limited = redis.call('ZRANGEBYSCORE', state .. ':limited', '(' .. number(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 32)
return {math.floor(host.limit), redis.call('ZCARD', permits), waiting, reason or '', ends or 0, now, limited, waits}
